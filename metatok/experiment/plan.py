"""From cells to work: every ancestor included, grouped into trials, with what each costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from metatok.data.corpus import (
    C4_DOCUMENTS_A_FILE,
    C4_FILES,
    CorpusConfig,
    EmbeddedCorpus,
    FilesCorpus,
    open_corpus,
)
from metatok.errors import ConfigError
from metatok.experiment.cells import (
    Ablate,
    Candidate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Pretrain,
    Probe,
    Published,
    RateDistortion,
)
from metatok.experiment.inputs import InputConfig, ShardsConfig
from metatok.experiment.settings import RunSettings
from metatok.model import GPT, GPTConfig

STAGES = ("pretrain", "extend", "search", "finetune", "ablate", "beta", "probe", "efficiency")
_STAGE_OF_KIND = {"published": "pretrain", "candidate": "search", "rate_distortion": "beta"}

A100_BF16_FLOPS = 312e12
ASSUMED_MFU = 0.4

_TOKEN_BYTES = 2  # of any vocabulary up to 65,536
_EXAMPLE_BYTES = 32  # its place, prompt length, phase and index
_CHARACTERS_A_TOKEN = {"gpt2": 4.0, "bpe": 2.5}
_C4_CHARACTERS_A_DOCUMENT = 2200


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
    """Training tokens, FLOPs of forward and backward passes, and bytes of the final weights, which stay."""

    tokens: int = 0
    flops: float = 0.0
    disk: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.tokens + other.tokens, self.flops + other.flops, self.disk + other.disk)

    @property
    def gpu_hours(self) -> float:
        """On an A100 in bf16 at an assumed 40% MFU."""
        return self.flops / (A100_BF16_FLOPS * ASSUMED_MFU) / 3600


@lru_cache(maxsize=100_000)
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
        training = _training(cell.result_model, tokens, cell.train_length, 0.0) + _scoring(cell)
        return replace(training, disk=0) if isinstance(cell, Candidate) else training
    if isinstance(cell, Ablate):
        return _scoring(cell.base)
    if isinstance(cell, Probe):
        return _forward(cell.base.result_model, cell.n_examples * cell.eval_length, cell.eval_length)
    if isinstance(cell, RateDistortion):
        return _forward(cell.base.result_model, cell.n_examples * cell.max_tokens, cell.max_tokens)
    assert isinstance(cell, Efficiency)
    tokens = cell.repeats * 2 * (cell.prompt_tokens + cell.new_tokens)
    return _forward(cell.model, tokens, cell.prompt_tokens)


def checkpoint_disk(cell: Cell, settings: RunSettings) -> int:
    """Bytes of a cell's step checkpoints at their most, gone when it is finished.

    Weights and Adam's two moments, in fp32; a new one is written before the oldest goes.
    """
    if not isinstance(cell, Pretrain | Extend | Finetune):
        return 0
    written = (cell.steps - 1) // settings.checkpoint_every
    weights = 4 * _shape(cell.result_model).num_parameters()
    return 3 * weights * min(written, settings.keep_checkpoints + 1)


def input_disk(config: InputConfig) -> int:
    """Bytes of a task data set, at most, or of a tokenised corpus, roughly.

    Errors: ConfigError where the corpus is of files that are not there.
    """
    if isinstance(config, ShardsConfig):
        return int(_corpus_text(config.corpus) / _CHARACTERS_A_TOKEN[config.tokenizer.name]) * _TOKEN_BYTES
    return config.n_examples * (_TOKEN_BYTES * config.max_tokens + _EXAMPLE_BYTES)


def _corpus_text(corpus: CorpusConfig) -> int:
    """Characters of a corpus, roughly. A compressed file is taken for text of its size."""
    if corpus.source == "c4":
        return (corpus.max_documents or C4_FILES * C4_DOCUMENTS_A_FILE) * _C4_CHARACTERS_A_DOCUMENT
    opened = open_corpus(corpus)
    assert isinstance(opened, FilesCorpus | EmbeddedCorpus)
    paths = opened.paths.values() if isinstance(opened, FilesCorpus) else opened.speeches
    return sum(path.stat().st_size for path in paths)


def places(nodes: Iterable[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """How many workers that need so much of each resource fit the nodes, each whole on one of them."""
    return sum(
        min(int(node.get(name, 0) / amount + 1e-6) for name, amount in needs.items() if amount)
        for node in nodes
    )


def _training(config: GPTConfig, tokens: int, length: int, meta_fraction: float) -> Cost:
    per_token, parameters = _model_cost(config, length, meta_fraction)
    return Cost(tokens, per_token * tokens, 4 * parameters)


def _forward(config: GPTConfig, tokens: int, length: int) -> Cost:
    return Cost(0, _model_cost(config, length, 0.0)[0] * tokens / 3, 0)


def _scoring(cell: Finetune) -> Cost:
    costs = [_forward(cell.result_model, cell.n_test * length, length) for length in cell.eval_lengths]
    return sum(costs, Cost())


def _model_cost(config: GPTConfig, length: int, meta_fraction: float) -> tuple[float, int]:
    """FLOPs of a forward and backward pass per token, and the number of parameters."""
    model = _shape(config)
    return model.flops_per_token(length, meta_fraction), model.num_parameters()


@lru_cache(maxsize=64)
def _shape(config: GPTConfig) -> GPT:
    """A model without storage."""
    with torch.device("meta"):
        return GPT(config)
