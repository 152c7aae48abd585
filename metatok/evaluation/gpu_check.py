"""What a GPU must show before a long run: bf16 equals fp32, the flash path, no graph breaks, speed.

    python -m metatok.evaluation.gpu_check

Checks the paper's three models at batch 12 x 1024 and prints tokens/s and MFU. Without a GPU it says so and
ends.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from metatok.evaluation.efficiency import Timing, inject_meta_tokens, measure_training_step, peak_flops
from metatok.model import GPT, GPTConfig
from metatok.randomness import generator

MODELS = ("gpt2_ape", "meta_ape", "meta_rope")
BATCH_SIZE = 12
META_FRACTION = 0.1
# bf16 keeps 8 bits, so one rounding is 2^-9; over the layers the errors of a state of size 1 add up to this.
BF16_ERROR = 0.05


def batch_of(cfg: GPTConfig, batch_size: int, seed: int = 0) -> Tensor:
    """Random token ids (B, context_length), a tenth of them meta tokens."""
    n_meta = int(META_FRACTION * cfg.context_length)
    shape = (batch_size, cfg.context_length - n_meta)
    text = torch.from_numpy(generator(seed, "gpu_check").integers(cfg.meta_token_id, size=shape))
    return inject_meta_tokens(text, n_meta, cfg.meta_token_id, seed)


@torch.no_grad()
def bf16_error(model: GPT, tokens: Tensor) -> float:
    """Root mean square of the bf16 error of the final hidden states, relative to the states themselves."""
    positions = model.meta_positions(tokens)
    exact = model.hidden(tokens, positions)
    with torch.autocast(tokens.device.type, torch.bfloat16):
        rounded = model.hidden(tokens, positions).float()
    return float((rounded - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@torch.no_grad()
def runs_on_flash(model: GPT, tokens: Tensor) -> bool:
    """Whether every attention of the model can take SDPA's flash kernel, in bf16."""
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast(tokens.device.type, torch.bfloat16):
            model.hidden(tokens, model.meta_positions(tokens))
    except RuntimeError:
        return False
    return True


@torch.no_grad()
def compiles_once(model: GPT, batches: list[Tensor], backend: str = "inductor") -> bool:
    """Whether torch.compile takes the model whole, and batches of one shape without compiling again."""
    torch.compiler.reset()
    compiled = torch.compile(model.hidden, fullgraph=True, backend=backend)
    positions = [model.meta_positions(tokens) for tokens in batches]
    try:
        compiled(batches[0], positions[0])
        with torch._dynamo.config.patch(error_on_recompile=True):
            for tokens, meta in zip(batches[1:], positions[1:], strict=True):
                compiled(tokens, meta)
    except (torch._dynamo.exc.RecompileError, torch._dynamo.exc.Unsupported):
        return False
    return True


def step_time(model: GPT, tokens: Tensor, compiled: bool) -> Timing:
    """Seconds of a bf16 training step."""
    found = measure_training_step(
        {"model": model}, tokens, model.cfg.meta_token_id, autocast=torch.bfloat16, compiled=compiled
    )
    return found.seconds["model"]


def main() -> None:
    """Run all checks. Exits non-zero if one fails."""
    if not torch.cuda.is_available():
        print("No GPU here: nothing was checked.")
        return
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    failures = []
    for name in MODELS:
        cfg = GPTConfig.variant(name)
        model = GPT(cfg).cuda()
        batches = [batch_of(cfg, BATCH_SIZE, seed).cuda() for seed in range(3)]
        error = bf16_error(model, batches[0])
        checks = {
            f"bf16 error {error:.4f} <= {BF16_ERROR}": error <= BF16_ERROR,
            "flash attention": runs_on_flash(model, batches[0]),
            "one graph, compiled once": compiles_once(model, batches),
        }
        failures += [f"{name}: {check}" for check, passed in checks.items() if not passed]
        print(f"{name}, {model.num_parameters() / 1e6:.1f}M parameters")
        for check, passed in checks.items():
            print(f"  {'ok  ' if passed else 'FAIL'} {check}")
        for compiled in (False, True):
            print(f"  {_speed(model, batches[0], compiled)}")
    if failures:
        raise SystemExit("\n".join(failures))


def _speed(model: GPT, tokens: Tensor, compiled: bool) -> str:
    seconds = step_time(model, tokens, compiled)
    text = f"{'compiled' if compiled else 'eager'}: {tokens.numel() / seconds.median:,.0f} tokens/s"
    peak = peak_flops("cuda")
    if peak is not None:
        flops = model.flops_per_token(tokens.size(1), META_FRACTION) * tokens.numel()
        text += f", MFU {flops / seconds.median / peak:.1%}"
    low, middle, high = (1e3 * s for s in (seconds.q25, seconds.median, seconds.q75))
    return f"{text} (step {middle:.0f} ms, quartiles {low:.0f}-{high:.0f})"


if __name__ == "__main__":
    main()
