"""Cells: one frozen description of one piece of work, with the cells it builds on.

A cell's fingerprint is a hash of its kind, the kind's version, its fields and its base's fingerprint.
Only what can change a result is a field; how a cell is run (workers, micro-batches, device, log interval)
is in metatok.experiment.settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.model import GPTConfig, Intervention
from metatok.tasks.curriculum import Curriculum
from metatok.tasks.dataset import Split
from metatok.tasks.registry import TaskName
from metatok.training.optim import OptimConfig

Precision = Literal["fp32", "bf16"]
GPT2_VOCAB_SIZE = 50_258  # 50,257 and the meta token


class Cell(BaseModel):
    """What all kinds share.

    `version` belongs to the kind: bumping it is how a fixed bug invalidates old results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: ClassVar[int] = 1
    kind: str

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_memo", None)  # the original's fingerprint is not the changed copy's
        return copied

    @property
    def parents(self) -> tuple[AnyCell, ...]:
        """The cells whose results this one reads."""
        base = getattr(self, "base", None)
        return () if base is None else (base,)

    @property
    def lineage(self) -> tuple[Cell, ...]:
        """All ancestors, the root first, and the cell itself."""
        return (*(cell for parent in self.parents for cell in parent.lineage), self)

    @property
    def root(self) -> Pretrain | Published:
        """The pre-training, ours or another's, that everything here goes back to."""
        root = self.lineage[0]
        assert isinstance(root, Pretrain | Published)
        return root

    def own_fields(self) -> dict[str, Any]:
        """The fields as JSON values, without the base's."""
        return self.model_dump(mode="json", exclude={"base", "kind"})

    @property
    def fingerprint(self) -> str:
        """sha256, 64 hex digits."""
        if "fingerprint" not in _memo(self):
            content = {
                "kind": self.kind,
                "version": self.version,
                "fields": self.own_fields(),
                "parents": [parent.fingerprint for parent in self.parents],
            }
            canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
            _memo(self)["fingerprint"] = hashlib.sha256(canonical.encode()).hexdigest()
        return _memo(self)["fingerprint"]

    @property
    def id(self) -> str:
        """The fingerprint's first 12 digits, for people."""
        return self.fingerprint[:12]

    @property
    def labels(self) -> dict[str, str | int | float]:
        """Where the cell stands in a table: model, task, train_length, setting, seed and so on."""
        return {"model": model_name(self), "seed": getattr(self, "seed", self.root.seed)}

    @property
    def slug(self) -> str:
        """A readable run name."""
        words = {k: v for k, v in self.labels.items() if k != "seed"}
        return "-".join([*(str(v) for v in words.values()), f"s{self.labels['seed']}"])


def _memo(cell: Cell) -> dict[str, str]:
    """Per-instance cache; sound because cells are frozen."""
    return cell.__dict__.setdefault("_memo", {})


class Pretrain(Cell):
    """Pre-train a model on a corpus (paper section 4.1, Tables 4).

    meta_fraction: share k of a block's positions that are meta tokens. batch_size: sequences an optimiser
    step over all workers. validation_sequences: blocks of the validation split behind the final loss.
    """

    version: ClassVar[int] = 2
    kind: Literal["pretrain"] = "pretrain"
    model: GPTConfig
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    meta_fraction: float = Field(default=0.1, ge=0, lt=1)
    optim: OptimConfig = OptimConfig()
    batch_size: int = Field(default=480, ge=1)
    steps: int = Field(default=200_000, ge=1)
    validation_sequences: int = Field(default=200, ge=1)
    precision: Precision = "fp32"
    seed: int = 0

    @model_validator(mode="after")
    def _vocabulary_fits(self) -> Self:
        expected = self.tokenizer.vocab_size or GPT2_VOCAB_SIZE
        if (self.model.vocab_size, self.model.meta_token_id) != (expected, expected - 1):
            raise ValueError(
                f"model.vocab_size={self.model.vocab_size}, model.meta_token_id={self.model.meta_token_id}: "
                f"the tokenizer {self.tokenizer.name} has {expected} ids, the last of which is the meta token"
            )
        return self

    @property
    def result_model(self) -> GPTConfig:
        """Configuration of the weights this cell leaves."""
        return self.model


class Published(Cell):
    """Fetch the weights of a model that others pre-trained, to fine-tune: the paper's baseline GPT-Neo-125M.

    corpus: where tasks that need text find it. There is one set of weights, so no seed: seeds tell its
    fine-tunes apart.
    """

    kind: Literal["published"] = "published"
    name: Literal["gpt_neo_125m"] = "gpt_neo_125m"
    corpus: CorpusConfig = CorpusConfig()

    # What a root has. GPT-Neo uses gpt2's ids, and its pre-training knew no meta tokens.
    tokenizer: ClassVar[TokenizerConfig] = TokenizerConfig()
    meta_fraction: ClassVar[float] = 0.0
    seed: ClassVar[int] = 0

    @property
    def model(self) -> GPTConfig:
        """Its shape, as near as GPTConfig describes it (metatok.model.gpt_neo)."""
        return GPTConfig.variant("gpt2_ape", context_length=2048, bias=True)

    @property
    def result_model(self) -> GPTConfig:
        return self.model


class Extend(Cell):
    """Extend a RoPE model's context by YaRN and train on at the new length (paper section 4.1, Table 5)."""

    kind: Literal["extend"] = "extend"
    base: Pretrain
    scale: float = Field(gt=1)
    optim: OptimConfig = OptimConfig(learning_rate=2e-5, min_learning_rate=2e-5)
    batch_size: int = Field(default=480, ge=1)
    steps: int = Field(default=400, ge=1)
    validation_sequences: int = Field(default=50, ge=1)
    precision: Precision = "fp32"
    seed: int = 0

    @model_validator(mode="after")
    def _can_extend(self) -> Self:
        _ = self.result_model
        return self

    @property
    def result_model(self) -> GPTConfig:
        return self.base.model.extended(self.scale)


class Finetune(Cell):
    """Fine-tune on one task up to one train length, then score at every eval length (paper section 4.2).

    base: a pre-trained or extended model, or the fine-tune of the previous train length. n_test: test
    examples an eval length. Eval length E scores prompts of more than E/2 tokens that with their
    completion have at most E.
    """

    version: ClassVar[int] = 3
    eval_split: ClassVar[Split] = "test"
    kind: Literal["finetune"] = "finetune"
    base: Annotated[Pretrain | Published | Extend | Finetune, Field(discriminator="kind")]
    task: TaskName
    curriculum: Curriculum = Curriculum()
    train_length: int = Field(ge=1)
    eval_lengths: tuple[int, ...]
    n_train: int = Field(default=90_000, ge=1)
    n_test: int = Field(default=10_000, ge=1)
    optim: OptimConfig = OptimConfig()
    batch_size: int = Field(default=64, ge=1)
    steps: int = Field(ge=1)
    precision: Precision = "fp32"
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        context = self.result_model.context_length
        if self.train_length > context:
            raise ValueError(
                f"train_length={self.train_length} is over the context of {model_name(self.base)}, "
                f"{context} tokens; take a shorter one or a model with a longer context"
            )
        if not self.eval_lengths:
            raise ValueError("eval_lengths=(): give at least one; learned positions end at the context")
        _check_positions(self, "eval_lengths", max(self.eval_lengths))
        return self

    @property
    def result_model(self) -> GPTConfig:
        return self.base.result_model

    @property
    def labels(self) -> dict[str, str | int | float]:
        return {
            "model": model_name(self),
            "task": self.task,
            "train_length": self.train_length,
            "seed": self.seed,
        }


class Candidate(Finetune):
    """A fine-tune of a hyperparameter search, scored on the validation split."""

    eval_split: ClassVar[Split] = "validation"
    kind: Literal["candidate"] = "candidate"  # type: ignore[assignment]

    @property
    def labels(self) -> dict[str, str | int | float]:
        tried = {"learning_rate": f"lr{self.optim.learning_rate:.2e}", "steps": f"{self.steps}steps"}
        return super().labels | tried


class Ablate(Cell):
    """Score a fine-tune under an intervention at its meta tokens (Tables 2, 11-17).

    Same test examples as the fine-tune's own scores, which are the "full" setting.
    """

    kind: Literal["ablate"] = "ablate"
    base: Finetune
    intervention: Intervention

    @model_validator(mode="after")
    def _defined(self) -> Self:
        position = self.base.result_model.position
        if self.intervention.changes_nothing:
            raise ValueError("intervention changes nothing; the fine-tune itself has the full scores")
        if self.intervention.changes_position and position in ("nope", "alibi"):
            raise ValueError(f"intervention {self.intervention.label}: {position} has no position to change")
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        return self.base.labels | {"setting": self.intervention.label, "seed": self.base.seed}


class RateDistortion(Cell):
    """One point of a rate-distortion curve: VIB on a frozen model's hidden states (section 5.1, Figure 3)."""

    version: ClassVar[int] = 3
    kind: Literal["rate_distortion"] = "rate_distortion"
    base: Annotated[Pretrain | Extend | Finetune, Field(discriminator="kind")]
    site: Literal["meta", "last_non_meta"]
    beta: float = Field(ge=0)
    task: TaskName = "list_recall"
    curriculum: Curriculum = Curriculum()
    max_tokens: int = Field(ge=1)
    n_examples: int = Field(default=50, ge=2)
    latent_dim: int = Field(default=32, ge=1)
    epochs: int = Field(default=5, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_positions(self, "max_tokens", self.max_tokens)
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        return {"model": model_name(self), "site": self.site, "beta": self.beta, "seed": self.seed}


class Probe(Cell):
    """Look inside a fine-tuned model at its meta tokens (section 4.4, Figures 2 and 3).

    analysis: "sharpness" (logit boost, entropy drop, Theorem 4.1), "residual" (cosine maps), "attention".
    """

    kind: Literal["probe"] = "probe"
    base: Finetune
    analysis: Literal["sharpness", "residual", "attention"]
    eval_length: int = Field(ge=1)
    n_examples: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_positions(self, "eval_length", self.eval_length)
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        return self.base.labels | {"analysis": self.analysis, "seed": self.base.seed}


class Efficiency(Cell):
    """Speed of an architecture: training step and inference, candidates interleaved in one run (Table 3).

    Speed does not depend on weights, so they are random and there is no base. A training step takes
    batch_size sequences of the context's length, meta_fraction of their positions meta tokens. prompt_tokens:
    text tokens of the prompt at inference; meta tokens come on top. What is measured depends on the machine,
    which the ledger's tags name.
    """

    version: ClassVar[int] = 2
    kind: Literal["efficiency"] = "efficiency"
    model: GPTConfig
    meta_fraction: float = Field(default=0.1, gt=0, lt=1)
    batch_size: int = Field(default=4, ge=1)
    prompt_tokens: int = Field(default=448, ge=1)
    new_tokens: int = Field(default=448, ge=2)
    repeats: int = Field(default=20, ge=1)
    precision: Precision = "fp32"
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        longest = self.prompt_tokens + int(self.meta_fraction * self.prompt_tokens) + self.new_tokens
        if self.model.position == "ape" and longest > self.model.context_length:
            raise ValueError(
                f"prompt_tokens={self.prompt_tokens}: with meta and new tokens that is "
                f"{longest}, over the context of {self.model.context_length}; take a shorter prompt"
            )
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        size = f"{self.model.n_layer}x{self.model.n_embd}"
        return {"model": variant_name(self.model, self.meta_fraction), "size": size, "seed": self.seed}


AnyCell = Annotated[
    Pretrain | Published | Extend | Candidate | Finetune | Ablate | RateDistortion | Probe | Efficiency,
    Field(discriminator="kind"),
]
KINDS: tuple[type[Cell], ...] = get_args(get_args(AnyCell)[0])

_adapter: TypeAdapter[AnyCell] = TypeAdapter(AnyCell)


def cell_from_json(text: str | bytes) -> AnyCell:
    """The cell that `cell.model_dump_json()` wrote."""
    return _adapter.validate_json(text)


def model_name(cell: Cell) -> str:
    """The variant's name as tables use it: meta_rope, meta_rope_yarn_4k, ..."""
    root = cell.root
    if isinstance(root, Published):
        return root.name
    name = variant_name(root.model, root.meta_fraction)
    extension = next((c for c in cell.lineage if isinstance(c, Extend)), None)
    if extension is not None:
        context = extension.result_model.context_length
        name += f"_yarn_{context // 1024}k" if context % 1024 == 0 else f"_yarn_{context}"
    return name


def variant_name(model: GPTConfig, meta_fraction: float) -> str:
    """The variant of a configuration pre-trained with this share of meta tokens."""
    prefix = {"meta": "meta", "causal": "wide", "none": "pause" if meta_fraction else "gpt2"}
    return f"{prefix[model.extra_attention]}_{model.position}"


def _check_positions(cell: Finetune | RateDistortion | Probe, field: str, longest: int) -> None:
    """ValueError where `longest` tokens are more than the base's learned positions."""
    model = cell.base.result_model
    if model.position == "ape" and longest > model.context_length:
        raise ValueError(
            f"{field}={getattr(cell, field)}: learned positions end at the context of "
            f"{model_name(cell.base)}, {model.context_length} tokens; leave out what is longer"
        )
