"""The one training loop: pre-training, context extension and fine-tuning differ in their batches alone.

It knows neither Ray nor MLflow: `on_log` and `on_checkpoint` are plain callbacks, and under
torch.distributed it averages over the ranks of the default process group.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from metatok.data.injection import IGNORE
from metatok.errors import ConfigError
from metatok.model import GPT
from metatok.randomness import torch_seed
from metatok.training.optim import OptimConfig

T = TypeVar("T")
Precision = str  # "fp32" or "bf16" (autocast)
ROWS_MULTIPLE = 64


class Batch(Protocol):
    """tokens (B, T); targets (B, T), -100 where no loss; meta_positions (B, M), padded with -1.

    indices (B,): the samples' numbers in their data set.
    """

    @property
    def tokens(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...
    @property
    def meta_positions(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...


class Diverged(FloatingPointError):
    """The loss or the gradient's norm of a step is not finite: what the model became is no result.

    step counts from 1. last_loss: nats/token, of the last finite step since training began or was resumed,
    NaN if there was none. indices: of the samples of the step's batch.
    """

    def __init__(self, step: int, last_loss: float, indices: list[int]):
        super().__init__(
            f"step {step}: the loss or the gradient's norm is not finite; last finite loss {last_loss:.4g}; "
            f"the batch's samples: {', '.join(map(str, indices))}"
        )
        self.step, self.last_loss, self.indices = step, last_loss, indices

    def __reduce__(self) -> tuple[Any, ...]:
        return Diverged, (self.step, self.last_loss, self.indices)


@dataclass(frozen=True)
class LoopSettings:
    """How to run, never what: nothing here changes a result."""

    device: str = "cpu"
    micro_batch_size: int = 64
    log_every: int = 10
    checkpoint_every: int = 1000
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        # A log line averages over its window, so a run resumed inside a window would log another mean.
        if self.checkpoint_every % self.log_every:
            raise ConfigError(
                f"checkpoint_every={self.checkpoint_every} must be a multiple of log_every={self.log_every}"
            )


@dataclass
class LoopState:
    """Where training stands: what a checkpoint needs to go on as if it had never stopped.

    progress: what whoever makes the batches keeps of it, as JSON.
    """

    step: int
    model: GPT
    optimizer: torch.optim.Optimizer
    progress: dict[str, Any] = field(default_factory=dict)

    def checkpoint(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "weights": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "meta": {"progress": dict(self.progress)},
        }


OnLog = Callable[[int, dict[str, float]], None]
OnCheckpoint = Callable[[LoopState], None]
OnEvaluate = Callable[[int], dict[str, float]]


def world() -> tuple[int, int]:
    """(rank, world size) of this process."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def agreed(mine: T) -> T:
    """Rank 0's value, on every rank."""
    if world()[1] == 1:
        return mine
    values = [mine]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def adamw(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the model's parameters: weight decay on matrices and embeddings only, fused kernel."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def _of_all_ranks(mine: list[int]) -> list[int]:
    """The ranks' lists, one after the other."""
    if world()[1] == 1:
        return mine
    lists: list[list[int]] = [[] for _ in range(world()[1])]
    dist.all_gather_object(lists, mine)
    return [item for each in lists for item in each]


def token_loss(module: nn.Module, batch: Batch, precision: Precision, device: str) -> Tensor:
    """Sum of cross-entropies (nats) over the targets that count.

    Logits are computed at those rows alone, which are found on the CPU: a GPU need not synchronise. Their
    number is rounded up with uncounted rows, so that compiled code meets few shapes.
    module: a LossRows, or its DDP or compiled wrapper.
    """
    flat = batch.targets.flatten()  # (B * T,)
    rows = (flat != IGNORE).nonzero().squeeze(1)  # (N,)
    rows = F.pad(rows, (0, -len(rows) % ROWS_MULTIPLE))
    targets = flat[rows]
    targets[(flat != IGNORE).sum() :] = IGNORE
    with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=precision == "bf16"):
        logits = module(
            batch.tokens.to(device, non_blocking=True),
            batch.meta_positions.to(device, non_blocking=True),
            rows.to(device, non_blocking=True),
        )  # (N, V)
    return F.cross_entropy(
        logits.float(), targets.to(device, non_blocking=True), ignore_index=IGNORE, reduction="sum"
    )


class LossRows(nn.Module):
    """A GPT whose forward gives logits at chosen rows: one forward for DDP and compile to wrap."""

    def __init__(self, gpt: GPT):
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens: Tensor, meta_positions: Tensor, rows: Tensor) -> Tensor:
        """tokens (B, T), meta_positions (B, M), rows (N,) into the flattened (B * T) -> logits (N, V)."""
        hidden = self.gpt.hidden(tokens, meta_positions)  # (B, T, D)
        return self.gpt.head(hidden.flatten(0, 1)[rows])


def _micro_batches(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch.tokens), size):
        part = slice(start, start + size)
        yield _Slice(batch.tokens[part], batch.targets[part], batch.meta_positions[part], batch.indices[part])


@dataclass(frozen=True)
class _Slice:
    tokens: Tensor
    targets: Tensor
    meta_positions: Tensor
    indices: Tensor


def train(
    model: GPT,
    batches: Callable[[int], Batch],
    *,
    steps: int,
    optim: OptimConfig,
    settings: LoopSettings,
    precision: Precision = "fp32",
    resume: dict[str, Any] | None = None,
    on_log: OnLog = lambda step, metrics: None,
    on_checkpoint: OnCheckpoint = lambda state: None,
    progress: dict[str, Any] | None = None,
    evaluate_every: int = 0,
    on_evaluate: OnEvaluate = lambda step: {},
) -> LoopState:
    """Train `model` in place to optimiser step `steps`.

    batches: step -> this rank's share of that step's batch; a pure function of the step, so that an
    interrupted run continues exactly, or of the step and of `progress`, which changes in on_evaluate alone
    and which a checkpoint keeps for whoever resumes. The loss is the mean over all counted tokens of the
    whole batch, over micro-batches and ranks alike. resume: LoopState.checkpoint() of an earlier run of the
    same training. on_log(step, metrics) has loss (nats/token), learning_rate, grad_norm, tokens_per_second;
    it is called on every rank, as is on_checkpoint. on_evaluate(step): metrics to log besides,
    asked for each `evaluate_every` steps and after the last; 0: never. Errors: Diverged, before anything of
    it is logged or kept.
    """
    model.to(settings.device).train()
    optimizer = adamw(model, optim)
    state = LoopState(0, model, optimizer, {} if progress is None else progress)
    if resume:
        model.load_state_dict(resume["weights"])
        optimizer.load_state_dict(resume["optimizer"])
        state.step = resume["step"]
    module = _wrapped(model, settings)
    window = _Window(settings.device)
    while state.step < steps:
        batch = batches(state.step)
        rate = optim.rate_at(state.step, steps)
        _seed_dropout(model, state.step)
        window.add(*_step(module, optimizer, batch, rate, optim.grad_clip, precision, settings))
        state.step += 1
        last = state.step == steps
        logs = last or state.step % settings.log_every == 0
        evaluates = evaluate_every and (last or state.step % evaluate_every == 0)
        if logs or evaluates:
            window.check(state.step, batches)
        line = window.close() | {"learning_rate": rate} if logs else {}
        if evaluates:
            with window.stopped():
                line |= on_evaluate(state.step)
            model.train()
        if line:
            on_log(state.step, line)
        if state.step % settings.checkpoint_every == 0 and not last:
            on_checkpoint(state)
    return state


def _seed_dropout(model: GPT, step: int) -> None:
    """Draws are a function of the step, as the data are: a resumed run draws the same."""
    if model.cfg.dropout:
        torch.manual_seed(torch_seed(0, f"dropout/{world()[0]}/{step}"))


def _step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    learning_rate: float,
    grad_clip: float,
    precision: Precision,
    settings: LoopSettings,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """One optimiser step. Returns this rank's loss sum; the count, gradient norm and tokens of all ranks."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    loss, counted = _accumulate(module, batch, precision, settings)
    grad_norm = nn.utils.clip_grad_norm_(module.parameters(), grad_clip or float("inf"))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss, counted, grad_norm, batch.tokens.numel() * world()[1]


def _wrapped(model: GPT, settings: LoopSettings) -> nn.Module:
    module: nn.Module = LossRows(model)
    if settings.compile:
        module = torch.compile(module)  # type: ignore[assignment]
    if world()[1] > 1:
        index = torch.device(settings.device).index
        on_gpu = settings.device.startswith("cuda")
        module = DistributedDataParallel(
            module,
            device_ids=[index or 0] if on_gpu else None,
            forward_sync_buffers=False,  # they are constants
            gradient_as_bucket_view=True,
        )
    return module


def _accumulate(
    module: nn.Module, batch: Batch, precision: Precision, settings: LoopSettings
) -> tuple[Tensor, Tensor]:
    """Gradients of the batch's mean loss. Returns this rank's loss sum, and all ranks' count."""
    _, ranks = world()
    counted = torch.tensor(float((batch.targets != IGNORE).sum()), device=settings.device)
    if ranks > 1:
        dist.all_reduce(counted)
    total = torch.zeros((), device=settings.device)
    parts = list(_micro_batches(batch, settings.micro_batch_size))
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        hold = isinstance(module, DistributedDataParallel) and not last
        with module.no_sync() if hold else contextlib.nullcontext():  # type: ignore[operator]
            loss = token_loss(module, part, precision, settings.device)
            # DDP averages gradients over ranks; the mean is over the tokens of all ranks.
            (loss * (ranks / counted)).backward()
        total += loss.detach()
    return total, counted


class _Window:
    """Steps since the last log line; their tensors stay on the device until the line is made."""

    def __init__(self, device: str):
        self._device = device
        self._last_loss = math.nan
        self._open()

    def _open(self) -> None:
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._checked = 0
        self._tokens = 0
        self._start = time.perf_counter()

    def add(self, loss: Tensor, counted: Tensor, grad_norm: Tensor, tokens: int) -> None:
        """loss: this rank's sum over its tokens. counted, tokens: of all ranks."""
        self._steps.append((loss, counted, grad_norm))
        self._tokens += tokens

    def check(self, step: int, batches: Callable[[int], Batch]) -> None:
        """Raise Diverged, on all ranks alike, if a step up to `step` has no finite loss or gradient norm."""
        new = self._steps[self._checked :]
        losses, counts, norms = (torch.stack(column) for column in zip(*new, strict=True))
        if world()[1] > 1:
            dist.all_reduce(losses)
        rows = zip(losses.tolist(), counts.tolist(), norms.tolist(), strict=True)
        for i, (loss, counted, norm) in enumerate(rows):
            if not math.isfinite(loss + norm):
                at = step - len(new) + i
                raise Diverged(at + 1, self._last_loss, _of_all_ranks(batches(at).indices.tolist()))
            self._last_loss = loss / max(counted, 1.0)
        self._checked = len(self._steps)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Meanwhile the clock stands still."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def close(self) -> dict[str, float]:
        """The line of the steps since the last one."""
        loss, counted = (sum(step[i] for step in self._steps) for i in range(2))
        loss = torch.as_tensor(loss, device=self._device)
        if world()[1] > 1:
            dist.all_reduce(loss)
        metrics = {
            "loss": float(loss) / max(float(counted), 1.0),
            "tokens_per_second": self._tokens / max(time.perf_counter() - self._start, 1e-9),
            "grad_norm": float(self._steps[-1][2]),
        }
        self._open()
        return metrics
