"""A sweep's settings, and the cells they make."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from metatok.analysis.config import BETAS
from metatok.config import LARGEST, Config, Count, Natural, NotNegative, Positive, Seed, Share
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


def _increasing(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if any(after <= before for before, after in pairwise(lengths)):
        raise ValueError("give lengths in increasing order, each once")
    return lengths


_Steps = Annotated[tuple[Count, ...], Field(min_length=1)]
# A train length builds on the one before it; an evaluation length given twice would count its examples twice.
_Lengths = Annotated[tuple[Count, ...], AfterValidator(_increasing)]


class ModelSize(Config):
    """Shape shared by all models of a sweep, and how wide their first weights scatter; GPT-2 small's."""

    n_layer: Count = 12
    n_head: Count = 12
    n_embd: Count = 768
    context_length: Count = 1024
    init_std: Positive = GPT2_STD
    embedding_init_std: Positive = GPT2_STD


class PretrainSettings(Config):
    """Table 4; batch_size in sequences an optimiser step over all workers."""

    meta_fraction: Share = 0.1
    batch_size: Count = 480
    steps: Count = 200_000
    validation_sequences: Count = 200
    optim: OptimConfig = OptimConfig(warmup_steps=2000, decay_steps=600_000)


class ExtendSettings(Config):
    """Table 5: which model is extended, how far, and what its extensions are fine-tuned and scored on."""

    model: str = "meta_rope"
    scales: tuple[Annotated[float, Field(gt=1)], ...] = (4.0, 8.0)
    steps: Count = 400
    batch_size: Count = 480
    validation_sequences: Count = 50
    optim: OptimConfig = OptimConfig(learning_rate=2e-5, min_learning_rate=2e-5)
    tasks: tuple[TaskName, ...] = ("list_recall", "segment_counting")
    train_lengths: _Lengths = (2048, 4096, 8192)
    finetune_steps: _Steps = (4200,)
    eval_lengths: _Lengths = (2048, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384)
    n_test: Count = 1000


class FinetuneSettings(Config):
    """Section 4.2.

    steps: optimiser steps of each train length in turn; the last entry serves all further ones.
    steps_by_task replaces it for the tasks it names. chained: each train length continues from the previous
    one's weights. search: of learning rate and steps; chosen: what it found, which replaces them (the models
    extended by YaRN keep theirs). validate_every, n_validation, learned_at: as of a Finetune cell.
    """

    train_lengths: _Lengths = Field(default=(128, 256, 512), min_length=1)
    eval_lengths: _Lengths = Field(default=(128, 256, 512, 1024, 2048), min_length=1)
    n_train: Count = 90_000
    n_test: Count = 10_000
    batch_size: Count = 64
    steps: _Steps = (4200,)
    steps_by_task: dict[TaskName, _Steps] = Field(default_factory=dict)
    optim: OptimConfig = OptimConfig(learning_rate=1e-4, min_learning_rate=1e-5, warmup_steps=100)
    chained: bool = True
    search: SearchSettings = SearchSettings()
    chosen: tuple[Choice, ...] = ()
    validate_every: Natural = 0
    n_validation: Natural = 0
    learned_at: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _countable(self) -> Self:
        most = max(n for steps in (self.steps, *self.steps_by_task.values()) for n in steps)
        if max(self.search.step_factors) * most > LARGEST:
            raise ValueError(
                f"search.step_factors={self.search.step_factors}: times {most} steps is over {LARGEST}"
            )
        return self

    def choice(self, model: str, task: str) -> Setting | None:
        """What a search chose for the fine-tunes of a model on a task."""
        return next((c for c in self.chosen if (c.model, c.task) == (model, task)), None)


class AnalysisSettings(Config):
    """Ablations, noise scales, rate-distortion points, probes and speed.

    sizes: shapes at which speed is measured; empty = the sweep's own. batch_size: sequences of a measured
    training step.
    """

    noise_scales: tuple[Positive, ...] = (0.1, 0.2, 0.5, 1.0)
    betas: tuple[NotNegative, ...] = BETAS
    bottleneck_examples: Count = Field(default=50, ge=2)
    bottleneck_tokens: Count = 512
    probe_examples: Count = 100
    prompt_tokens: Count = 448
    new_tokens: Count = Field(default=448, ge=2)
    repeats: Count = 20
    sizes: tuple[ModelSize, ...] = ()
    batch_size: Count = 4


class Preset(Config):
    """Everything a sweep does. Any field can be overridden; `run` says how, the rest what.

    Errors: ValueError, or pydantic's, naming the field.
    """

    name: str
    models: tuple[str, ...] = ("gpt2_ape", "meta_ape", "meta_rope")
    tasks: tuple[TaskName, ...] = ("list_recall", "segment_counting", "parity", "copying")
    seeds: tuple[Seed, ...] = (0,)
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
