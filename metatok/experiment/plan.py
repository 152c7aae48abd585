"""From cells to work: every ancestor included, grouped into trials, with what each costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from metatok.errors import ConfigError
from metatok.experiment.cells import (
    Ablate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Pretrain,
    Probe,
    Published,
    RateDistortion,
)
from metatok.model import GPT, GPTConfig

STAGES = ("pretrain", "extend", "finetune", "ablate", "beta", "probe", "efficiency")
_STAGE_OF_KIND = {"published": "pretrain", "rate_distortion": "beta"}

A100_BF16_FLOPS = 312e12
ASSUMED_MFU = 0.4


def stage_of(cell: Cell) -> str:
    """The sweep stage that a cell belongs to."""
    return _STAGE_OF_KIND.get(cell.kind, cell.kind)


def with_ancestors(cells: Iterable[Cell]) -> list[Cell]:
    """The cells and all that they build on, each once, bases first."""
    ordered: dict[str, Cell] = {}
    for cell in cells:
        for member in cell.lineage:
            ordered.setdefault(member.fingerprint, member)
    return list(ordered.values())


def unreachable(missing: Sequence[Cell]) -> tuple[frozenset[str], str]:
    """Of the cells still to do, those whose published weights are not to be had here: fingerprints and why.

    Takes seconds where the hub does not answer; no time where no cell fetches anything.
    """
    if not any(isinstance(cell, Published) for cell in missing):
        return frozenset(), ""
    try:
        from metatok.model.gpt_neo import check_published

        check_published()
    except ImportError as error:
        why = f"model gpt_neo_125m: {error}; pip install 'metatok[hf]'"
    except ConfigError as error:
        why = str(error)
    else:
        return frozenset(), ""
    left_out = frozenset(cell.fingerprint for cell in missing if isinstance(cell.lineage[0], Published))
    return left_out, f"{len(left_out)} cells are left out. {why}"


@dataclass(frozen=True)
class Trial:
    """Cells that run one after the other in one process, or one group of DDP processes."""

    cells: tuple[Cell, ...]

    @property
    def distributed(self) -> bool:
        return isinstance(self.cells[0], Pretrain | Extend)

    @property
    def needs(self) -> frozenset[str]:
        """Fingerprints of the bases that lie outside the trial."""
        own = {cell.fingerprint for cell in self.cells}
        return frozenset(p.fingerprint for cell in self.cells for p in cell.parents) - own


def trials(cells: Sequence[Cell], share_trainer: bool) -> list[Trial]:
    """Group cells (bases first) into trials, in the order of their first cells.

    A trial is all pre-trainings with their extensions of one base (of all bases, if share_trainer); the
    train lengths of one fine-tune; or all that looks at one checkpoint in one way.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell, share_trainer), []).append(cell)
    return [Trial(tuple(group)) for group in groups.values()]


def _group(cell: Cell, share_trainer: bool) -> tuple[str, str]:
    if isinstance(cell, Pretrain | Extend):
        return "train", "" if share_trainer else cell.root.fingerprint
    if isinstance(cell, Published):
        return cell.kind, cell.fingerprint
    if isinstance(cell, Finetune):
        first = next(c for c in cell.lineage if isinstance(c, Finetune))
        return cell.kind, first.fingerprint
    return cell.kind, cell.parents[0].fingerprint if cell.parents else cell.fingerprint


@dataclass(frozen=True)
class Cost:
    """Training tokens, FLOPs of forward and backward passes, and bytes of the final weights."""

    tokens: int = 0
    flops: float = 0.0
    disk: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.tokens + other.tokens, self.flops + other.flops, self.disk + other.disk)

    @property
    def gpu_hours(self) -> float:
        """On an A100 in bf16 at an assumed 40% MFU."""
        return self.flops / (A100_BF16_FLOPS * ASSUMED_MFU) / 3600


def cost(cell: Cell) -> Cost:
    """What a cell costs; lengths are taken at their upper bounds, so this is a ceiling."""
    if isinstance(cell, Pretrain | Extend):
        length = cell.result_model.context_length
        tokens = cell.steps * cell.batch_size * length
        return _training(cell.result_model, tokens, length, cell.root.meta_fraction)
    if isinstance(cell, Published):
        return Cost(disk=_training(cell.model, 0, 1, 0.0).disk)
    if isinstance(cell, Finetune):
        tokens = cell.steps * cell.batch_size * cell.train_length
        return _training(cell.result_model, tokens, cell.train_length, 0.0) + _scoring(cell)
    if isinstance(cell, Ablate):
        return _scoring(cell.base)
    if isinstance(cell, Probe):
        return _forward(cell.base.result_model, cell.n_examples * cell.eval_length, cell.eval_length)
    if isinstance(cell, RateDistortion):
        return _forward(cell.base.result_model, cell.n_examples * cell.max_tokens, cell.max_tokens)
    assert isinstance(cell, Efficiency)
    tokens = cell.repeats * 2 * (cell.prompt_tokens + cell.new_tokens)
    return _forward(cell.model, tokens, cell.prompt_tokens)


def _training(config: GPTConfig, tokens: int, length: int, meta_fraction: float) -> Cost:
    per_token, parameters = _model_cost(config, length, meta_fraction)
    return Cost(tokens, per_token * tokens, 4 * parameters)


def _forward(config: GPTConfig, tokens: int, length: int) -> Cost:
    return Cost(0, _model_cost(config, length, 0.0)[0] * tokens / 3, 0)


def _scoring(cell: Finetune) -> Cost:
    costs = [_forward(cell.result_model, cell.n_test * length, length) for length in cell.eval_lengths]
    return sum(costs, Cost())


@lru_cache(maxsize=256)
def _model_cost(config: GPTConfig, length: int, meta_fraction: float) -> tuple[float, int]:
    """FLOPs of a forward and backward pass per token, and the number of parameters."""
    with torch.device("meta"):
        model = GPT(config)
    return model.flops_per_token(length, meta_fraction), model.num_parameters()
