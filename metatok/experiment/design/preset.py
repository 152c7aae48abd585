"""A sweep's settings, and the cells they make."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from metatok.analysis.config import BETAS
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.errors import ConfigError, one_line
from metatok.experiment.design.cell import Cell, all_kinds, stages
from metatok.experiment.design.search import Choice, SearchSettings, Setting
from metatok.experiment.design.settings import RunSettings
from metatok.model import VARIANTS
from metatok.model.config import GPT2_STD
from metatok.tasks.curriculum import CurriculumName
from metatok.tasks.registry import TaskName
from metatok.training.optim import OptimConfig

PUBLISHED = ("gpt_neo_125m",)  # models that others pre-trained
_Steps = Annotated[tuple[int, ...], Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSize(_Part):
    """Shape shared by all models of a sweep, and how wide their first weights scatter; GPT-2 small's."""

    n_layer: int = Field(default=12, ge=1)
    n_head: int = Field(default=12, ge=1)
    n_embd: int = Field(default=768, ge=1)
    context_length: int = Field(default=1024, ge=1)
    init_std: float = Field(default=GPT2_STD, gt=0, allow_inf_nan=False)
    embedding_init_std: float = Field(default=GPT2_STD, gt=0, allow_inf_nan=False)


class PretrainSettings(_Part):
    """Table 4; batch_size in sequences an optimiser step over all workers."""

    meta_fraction: float = Field(default=0.1, ge=0, lt=1)
    batch_size: int = Field(default=480, ge=1)
    steps: int = Field(default=200_000, ge=1)
    validation_sequences: int = Field(default=200, ge=1)
    optim: OptimConfig = OptimConfig(warmup_steps=2000, decay_steps=600_000)


class ExtendSettings(_Part):
    """Table 5: which model is extended, how far, and what its extensions are fine-tuned and scored on."""

    model: str = "meta_rope"
    scales: tuple[float, ...] = (4.0, 8.0)
    steps: int = Field(default=400, ge=1)
    batch_size: int = Field(default=480, ge=1)
    validation_sequences: int = Field(default=50, ge=1)
    optim: OptimConfig = OptimConfig(learning_rate=2e-5, min_learning_rate=2e-5)
    tasks: tuple[TaskName, ...] = ("list_recall", "segment_counting")
    train_lengths: tuple[int, ...] = (2048, 4096, 8192)
    finetune_steps: _Steps = (4200,)
    eval_lengths: tuple[int, ...] = (2048, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384)
    n_test: int = Field(default=1000, ge=1)


class FinetuneSettings(_Part):
    """Section 4.2.

    steps: optimiser steps of each train length in turn; the last entry serves all further ones.
    steps_by_task replaces it for the tasks it names. chained: each train length continues from the previous
    one's weights. search: of learning rate and steps; chosen: what it found, which replaces them (the models
    extended by YaRN keep theirs). validate_every, n_validation, learned_at: as of a Finetune cell.
    """

    train_lengths: tuple[int, ...] = Field(default=(128, 256, 512), min_length=1)
    eval_lengths: tuple[int, ...] = Field(default=(128, 256, 512, 1024, 2048), min_length=1)
    n_train: int = Field(default=90_000, ge=1)
    n_test: int = Field(default=10_000, ge=1)
    batch_size: int = Field(default=64, ge=1)
    steps: _Steps = (4200,)
    steps_by_task: dict[TaskName, _Steps] = {}
    optim: OptimConfig = OptimConfig(learning_rate=1e-4, min_learning_rate=1e-5, warmup_steps=100)
    chained: bool = True
    search: SearchSettings = SearchSettings()
    chosen: tuple[Choice, ...] = ()
    validate_every: int = Field(default=0, ge=0)
    n_validation: int = Field(default=0, ge=0)
    learned_at: float | None = Field(default=None, gt=0, le=1)

    def choice(self, model: str, task: str) -> Setting | None:
        """What a search chose for the fine-tunes of a model on a task."""
        return next((c for c in self.chosen if (c.model, c.task) == (model, task)), None)


class AnalysisSettings(_Part):
    """Ablations, noise scales, rate-distortion points, probes and speed.

    sizes: shapes at which speed is measured; empty = the sweep's own. batch_size: sequences of a measured
    training step.
    """

    noise_scales: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0)
    betas: tuple[float, ...] = BETAS
    bottleneck_examples: int = Field(default=50, ge=2)
    bottleneck_tokens: int = Field(default=512, ge=1)
    probe_examples: int = Field(default=100, ge=1)
    prompt_tokens: int = Field(default=448, ge=1)
    new_tokens: int = Field(default=448, ge=2)
    repeats: int = Field(default=20, ge=1)
    sizes: tuple[ModelSize, ...] = ()
    batch_size: int = Field(default=4, ge=1)


class Preset(_Part):
    """Everything a sweep does. Any field can be overridden; `run` says how, the rest what.

    Errors: ValueError, or pydantic's, naming the field.
    """

    name: str
    models: tuple[str, ...] = ("gpt2_ape", "meta_ape", "meta_rope")
    tasks: tuple[TaskName, ...] = ("list_recall", "segment_counting", "parity", "copying")
    seeds: tuple[int, ...] = (0,)
    stages: tuple[str, ...] = Field(default_factory=stages)
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    curriculum: CurriculumName = "table6"
    precision: Literal["fp32", "bf16"] = "bf16"
    size: ModelSize = ModelSize()
    pretrain: PretrainSettings = PretrainSettings()
    extend: ExtendSettings = ExtendSettings()
    finetune: FinetuneSettings = FinetuneSettings()
    analysis: AnalysisSettings = AnalysisSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for field, values, known in (
            ("models", self.models, [*sorted(VARIANTS), *PUBLISHED]),
            ("stages", self.stages, stages()),
            ("extend.model", (self.extend.model,), sorted(VARIANTS)),
        ):
            for value in values:
                if value not in known:
                    raise ValueError(f"{field}={value!r}: unknown, choose one of {', '.join(known)}")
        if not (self.models and self.seeds):
            raise ValueError("models and seeds must not be empty")
        return self

    def cells(self) -> list[Cell]:
        """The cells of the chosen stages, without the ancestors that other stages would make.

        Errors: ConfigError if the fields do not go together, as a train length over the context.
        """
        found: dict[str, Cell] = {}
        try:
            for seed in self.seeds:
                made: list[Cell] = []
                for kind in all_kinds():
                    made += kind.planned(self, seed, made)
                found |= {cell.fingerprint: cell for cell in made if cell.fingerprint not in found}
        except ValidationError as error:
            raise ConfigError(one_line(error)) from None
        return [cell for cell in found.values() if cell.stage in self.stages]
