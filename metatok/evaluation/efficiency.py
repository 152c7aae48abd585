"""Speed, measured fairly: inference with and without meta tokens (Table 3), and training steps.

Candidates run in turn within one process, again and again, so that a machine's drift hits all alike;
a ratio is the median over rounds of a round's own ratio.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metatok.errors import ConfigError
from metatok.model import GPT, GPTConfig
from metatok.randomness import generator

T_ = TypeVar("T_")


@dataclass(frozen=True)
class Timing:
    """One number a round: seconds, or what the field that holds it says."""

    samples: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def median(self) -> float:
        return self._quantile(0.5)

    @property
    def q25(self) -> float:
        return self._quantile(0.25)

    @property
    def q75(self) -> float:
        return self._quantile(0.75)

    def _quantile(self, q: float) -> float:
        return float(np.quantile(self.samples, q))

    def over(self, reference: Timing) -> Timing:
        """The ratio to another candidate of the same run, round by round; no unit."""
        return Timing(tuple(a / b for a, b in zip(self.samples, reference.samples, strict=True)))

    def metrics(self, name: str) -> dict[str, float]:
        """For a ledger: name_median, name_q25, name_q75 and name_n."""
        return {
            f"{name}_median": self.median,
            f"{name}_q25": self.q25,
            f"{name}_q75": self.q75,
            f"{name}_n": float(self.n),
        }


def interleaved(
    fns: Mapping[str, Callable[[], object]], repeats: int = 10, warmup: int = 2
) -> dict[str, Timing]:
    """Seconds that each function takes, one sample a round.

    A round runs every function once, each round beginning with the next one; `warmup` rounds are not
    counted. Waits for a CUDA device before and after. Errors: ConfigError on no functions, or on repeats < 1
    or warmup < 0.
    """

    def timed(fn: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            start = _now()
            fn()
            return _now() - start

        return run

    rounds = _rounds({name: timed(fn) for name, fn in fns.items()}, repeats, warmup)
    return {name: Timing(tuple(seconds)) for name, seconds in rounds.items()}


def _rounds(fns: Mapping[str, Callable[[], T_]], repeats: int, warmup: int) -> dict[str, list[T_]]:
    """What each function returned, one entry a round, in rounds that begin with each in turn."""
    if not fns:
        raise ConfigError("nothing to measure; give at least one function or model")
    if repeats < 1 or warmup < 0:
        raise ConfigError(f"repeats={repeats} must be at least 1 and warmup={warmup} at least 0")
    names = list(fns)
    results: dict[str, list[T_]] = {name: [] for name in names}
    for index in range(warmup + repeats):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            result = fns[name]()
            if index >= warmup:
                results[name].append(result)
    return results


def _now() -> float:
    """Seconds on a monotonic clock, after all work given to a CUDA device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class InferenceEfficiency:
    """Table 3. Prompts of n_text tokens; "with" has n_meta meta tokens more at random places.

    with_meta, without_meta: tokens/s, generated tokens over the whole generation's time, the prompt's
    reading included. ttft_with_meta, ttft_without_meta: ms to the first token. slowdown: tokens/s without
    over with, as the paper's 1.11. ttft_ratio: with over without.
    """

    n_text: int
    n_meta: int
    new_tokens: int
    with_meta: Timing
    without_meta: Timing
    ttft_with_meta: Timing
    ttft_without_meta: Timing
    slowdown: Timing
    ttft_ratio: Timing


def measure_inference(
    model: GPT,
    prompt: Tensor,
    new_tokens: int = 64,
    meta_fraction: float = 0.1,
    baseline: GPT | None = None,
    repeats: int = 10,
    warmup: int = 2,
    seed: int = 0,
) -> InferenceEfficiency:
    """Greedy generation from the same text with and without meta tokens in it (section 4.5, Table 3).

    prompt (B, P): text tokens, no padding, no meta tokens, on the model's device. "Without" reads it as it
    is; "with" reads it with M = floor(meta_fraction * P) meta tokens injected, so P + M positions: the text
    is the same, and the meta tokens' own positions are part of their price. Both generate new_tokens.
    baseline: what generates without meta tokens; None: the same model. Errors: ConfigError on meta_fraction,
    repeats or warmup; ValueError where GPT.generate raises.
    """
    if not 0 < meta_fraction <= 1:
        raise ConfigError(f"meta_fraction={meta_fraction} must be above 0 and at most 1; the paper's is 0.1")
    P = prompt.size(1)
    n_meta = math.floor(meta_fraction * P + 1e-9)  # a product such as 0.29 * 100 falls just short
    if n_meta == 0:
        raise ConfigError(
            f"meta_fraction={meta_fraction} of {P} tokens is no meta token; lengthen the prompt"
        )
    injected = inject_meta_tokens(prompt, n_meta, model.cfg.meta_token_id, seed)
    without = model if baseline is None else baseline

    rounds = _rounds(
        {
            "with": lambda: _generation_times(model, injected, new_tokens),
            "without": lambda: _generation_times(without, prompt, new_tokens),
        },
        repeats,
        warmup,
    )
    produced = len(prompt) * new_tokens
    speed = {name: Timing(tuple(produced / total for _, total in times)) for name, times in rounds.items()}
    ttft = {name: Timing(tuple(1e3 * first for first, _ in times)) for name, times in rounds.items()}
    return InferenceEfficiency(
        n_text=P,
        n_meta=n_meta,
        new_tokens=new_tokens,
        with_meta=speed["with"],
        without_meta=speed["without"],
        ttft_with_meta=ttft["with"],
        ttft_without_meta=ttft["without"],
        slowdown=speed["without"].over(speed["with"]),
        ttft_ratio=ttft["with"].over(ttft["without"]),
    )


def _generation_times(model: GPT, prompt: Tensor, new_tokens: int) -> tuple[float, float]:
    """Seconds to the first token and to the last, of one greedy generation from prompt (B, T)."""
    first = 0.0

    def on_token(step: int, _: Tensor) -> None:
        nonlocal first
        if step == 0:
            first = _now()

    start = _now()
    model.generate(prompt, new_tokens, on_token=on_token)
    return first - start, _now() - start


def inject_meta_tokens(prompt: Tensor, n_meta: int, meta_token_id: int, seed: int = 0) -> Tensor:
    """prompt (B, P) with n_meta meta tokens at uniformly drawn places before each row's end: (B, P + n_meta).

    The last token stays text: a model with random weights repeats it, and a trained one never generates a
    meta token.
    """
    B, P = prompt.shape
    out = prompt.new_full((B, P + n_meta), meta_token_id)
    for row in range(B):
        text = generator(seed, "efficiency/inject", row).choice(P - 1 + n_meta, P - 1, replace=False)
        text = np.append(text, P - 1 + n_meta)
        out[row, torch.from_numpy(np.sort(text)).to(prompt.device)] = prompt[row]
    return out


@dataclass(frozen=True)
class TrainingEfficiency:
    """Step times of several models on one batch, interleaved.

    seconds: a step of each model. ratios: its time over the reference's, the reference's own being 1.
    tokens_per_step: B * T.
    """

    reference: str
    tokens_per_step: int
    seconds: dict[str, Timing]
    ratios: dict[str, Timing]

    @property
    def tokens_per_second(self) -> dict[str, Timing]:
        return {
            name: Timing(tuple(self.tokens_per_step / s for s in timing.samples))
            for name, timing in self.seconds.items()
        }


def measure_training_step(
    models: Mapping[str, nn.Module],
    tokens: Tensor,
    meta_token_id: int,
    reference: str | None = None,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
    repeats: int = 10,
    warmup: int = 2,
) -> TrainingEfficiency:
    """Time of forward, backward, clipping and AdamW on one batch, for models run in turn.

    tokens (B, T): next-token batch, meta tokens in it, on the models' device; a position whose target is a
    meta token carries no loss. A GPT computes logits only where there is loss; any other module is called as
    transformers' language models are: module(input_ids=tokens, labels=labels).loss. The learning rate is 0,
    so the same work leaves the weights as they are. reference: what ratios divide by; None: the first model.
    autocast: torch.bfloat16, or None for the weights' own type. compiled: through torch.compile.
    Errors: ConfigError on names, repeats or warmup.
    """
    if not models:
        raise ConfigError("models is empty; give at least one")
    reference = next(iter(models)) if reference is None else reference
    if reference not in models:
        raise ConfigError(f"reference='{reference}' is not a model; choose one of {', '.join(models)}")
    steps = {name: training_step(m, tokens, meta_token_id, autocast, compiled) for name, m in models.items()}
    modes = {name: module.training for name, module in models.items()}
    for module in models.values():
        module.train()
    try:
        seconds = interleaved(steps, repeats, warmup)
    finally:
        for name, module in models.items():
            module.train(modes[name])
            module.zero_grad()
    ratios = {name: timing.over(seconds[reference]) for name, timing in seconds.items()}
    return TrainingEfficiency(reference, tokens.numel(), seconds, ratios)


# Dense bf16 tensor-core peaks of the makers' data sheets, FLOP/s.
_PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}


def peak_flops(device: str) -> float | None:
    """The device's bf16 peak (FLOP/s), what MFU is a share of; None where it is not known, as on a CPU."""
    if not device.startswith("cuda"):
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


def transformers_gpt2(cfg: GPTConfig) -> nn.Module:
    """transformers' GPT2LMHeadModel of the same shape and vocabulary, random weights, no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=cfg.padded_vocab_size,
        n_positions=cfg.context_length,
        n_layer=cfg.n_layer,
        n_head=cfg.n_head,
        n_embd=cfg.n_embd,
        resid_pdrop=cfg.dropout,
        embd_pdrop=cfg.dropout,
        attn_pdrop=cfg.dropout,
        use_cache=False,
        bos_token_id=None,  # its defaults lie outside a small vocabulary
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # what it falls back to, with a warning
    return model


def training_step(
    module: nn.Module,
    tokens: Tensor,
    meta_token_id: int,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
) -> Callable[[], Tensor]:
    """A function that takes one optimiser step on tokens (B, T) at learning rate 0, and returns the loss.

    Arguments as in `measure_training_step`.
    """
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    if isinstance(module, GPT):
        loss_of = _gpt_loss(module, tokens, meta_token_id, compiled)
    else:
        loss_of = _transformers_loss(module, tokens, meta_token_id, compiled)

    def step() -> Tensor:
        with torch.autocast(tokens.device.type, dtype=autocast, enabled=autocast is not None):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _gpt_loss(model: GPT, tokens: Tensor, meta_token_id: int, compiled: bool) -> Callable[[], Tensor]:
    """Mean next-token cross-entropy (nats) of tokens (B, T), from logits at the counted positions alone."""
    targets = tokens[:, 1:]
    kept = (targets != meta_token_id).flatten().nonzero().squeeze(1)
    wanted = targets.flatten()[kept]
    positions = model.meta_positions(tokens)
    hidden_of = torch.compile(model.hidden) if compiled else model.hidden

    def loss() -> Tensor:
        hidden = hidden_of(tokens, positions)[:, :-1].flatten(0, 1)
        return F.cross_entropy(model.head(hidden.index_select(0, kept)).float(), wanted)

    return loss


def _transformers_loss(
    module: nn.Module, tokens: Tensor, meta_token_id: int, compiled: bool
) -> Callable[[], Tensor]:
    """The same loss as transformers' language models compute it."""
    labels = tokens.masked_fill(tokens == meta_token_id, -100)
    call = torch.compile(module) if compiled else module
    return lambda: call(input_ids=tokens, labels=labels).loss
