"""A sweep's settings, and the cells they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from metatok.analysis import BETAS
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.errors import ConfigError, one_line
from metatok.experiment.cells import (
    GPT2_VOCAB_SIZE,
    Ablate,
    Candidate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Precision,
    Pretrain,
    Probe,
    Published,
    RateDistortion,
    model_name,
)
from metatok.experiment.plan import STAGES, stage_of
from metatok.experiment.search import Choice, SearchSettings, Setting
from metatok.experiment.settings import RunSettings
from metatok.model import VARIANTS, GPTConfig, Intervention
from metatok.tasks.curriculum import CURRICULA, CurriculumName
from metatok.tasks.registry import TaskName
from metatok.training.optim import OptimConfig

_Steps = Annotated[tuple[int, ...], Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSize(_Part):
    """Shape shared by all models of a sweep; the defaults are GPT-2 small."""

    n_layer: int = Field(default=12, ge=1)
    n_head: int = Field(default=12, ge=1)
    n_embd: int = Field(default=768, ge=1)
    context_length: int = Field(default=1024, ge=1)


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
    extended by YaRN keep theirs).
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
    stages: tuple[str, ...] = STAGES
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    curriculum: CurriculumName = "table6"
    precision: Precision = "bf16"
    size: ModelSize = ModelSize()
    pretrain: PretrainSettings = PretrainSettings()
    extend: ExtendSettings = ExtendSettings()
    finetune: FinetuneSettings = FinetuneSettings()
    analysis: AnalysisSettings = AnalysisSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for field, values, known in (
            ("models", self.models, [*sorted(VARIANTS), "gpt_neo_125m"]),
            ("stages", self.stages, STAGES),
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
        try:
            cells = [cell for seed in self.seeds for cell in self._cells(seed)]
        except ValidationError as error:
            raise ConfigError(one_line(error)) from None
        return [cell for cell in cells if stage_of(cell) in self.stages]

    def _cells(self, seed: int) -> Iterator[Cell]:
        roots = self._roots(seed)
        bases = {name: root for name, root in roots.items() if isinstance(root, Pretrain)}
        # One cell of a published model serves the fine-tunes of all seeds.
        yield from roots.values() if seed == self.seeds[0] else bases.values()
        finetunes: list[Finetune] = []
        if self.extend.model in bases:
            for scale in self.extend.scales:
                extended = self._extension(bases[self.extend.model], scale)
                yield extended
                yield from self._long_finetunes(extended)
        for task in self.tasks:
            for root in roots.values():
                finetunes += self._finetunes(root, task, seed)
        yield from finetunes
        for base in bases.values():
            if base.meta_fraction:
                yield from self._rate_distortion(base)
            if base.model.extra_attention == "meta" and seed == self.seeds[0]:
                yield from self._efficiency(base.model)
        for cell in finetunes:
            if cell.root.meta_fraction:
                yield from self._ablations(cell)
        yield from self._probes(finetunes)

    def _roots(self, seed: int) -> dict[str, Pretrain | Published]:
        """What all else builds on, by name: our variants, then published models."""
        ours: dict[str, Pretrain | Published] = {
            name: self._pretrain(name, seed) for name in self.models if name in VARIANTS
        }
        return ours | {name: Published(corpus=self.corpus) for name in self.models if name not in VARIANTS}

    def _pretrain(self, name: str, seed: int) -> Pretrain:
        vocab_size = self.tokenizer.vocab_size or GPT2_VOCAB_SIZE
        model = GPTConfig.variant(
            name, vocab_size=vocab_size, meta_token_id=vocab_size - 1, **self.size.model_dump()
        )
        settings = self.pretrain
        return Pretrain(
            model=model,
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            meta_fraction=settings.meta_fraction if VARIANTS[name].injects_meta_tokens else 0.0,
            optim=settings.optim,
            batch_size=settings.batch_size,
            steps=settings.steps,
            validation_sequences=settings.validation_sequences,
            precision=self.precision,
            seed=seed,
        )

    def _extension(self, base: Pretrain, scale: float) -> Extend:
        settings = self.extend
        return Extend(
            base=base,
            scale=scale,
            optim=settings.optim,
            batch_size=settings.batch_size,
            steps=settings.steps,
            validation_sequences=settings.validation_sequences,
            precision=self.precision,
            seed=base.seed,
        )

    def _long_finetunes(self, base: Extend) -> Iterator[Finetune]:
        lengths = [n for n in self.extend.train_lengths if n <= base.result_model.context_length]
        for task in self.extend.tasks:
            yield from self._chain(
                base,
                task,
                lengths,
                self.extend.finetune_steps,
                self.extend.eval_lengths,
                self.extend.n_test,
                base.seed,
                self.finetune.optim,
            )

    def _finetunes(
        self, base: Pretrain | Published, task: str, seed: int, setting: Setting | None = None
    ) -> Iterator[Finetune]:
        """setting: learning rate and steps; None: what a search chose, or the preset's."""
        # Learned positions end at the context; relative ones are tested beyond it.
        limit = base.model.context_length if base.model.position == "ape" else None
        eval_lengths = [n for n in self.finetune.eval_lengths if limit is None or n <= limit]
        settings = self.finetune
        steps, optim = settings.steps_by_task.get(task, settings.steps), settings.optim
        setting = setting or settings.choice(model_name(base), task)
        if setting is not None:
            steps = tuple(max(1, round(setting.step_factor * n)) for n in steps)
            optim = optim.at_rate(setting.learning_rate)
        lengths = settings.train_lengths
        yield from self._chain(base, task, lengths, steps, eval_lengths, settings.n_test, seed, optim)

    def candidates(
        self, settings: Mapping[tuple[str, str], Sequence[Setting]], share: float
    ) -> dict[tuple[str, str], dict[Setting, Candidate]]:
        """A round of the search: for each (model, task) of `settings` a cell a setting.

        Each trains for `share` of its setting's steps, from the first seed's base at the first train length.
        """
        roots = {model_name(root): root for root in self._roots(self.seeds[0]).values()}
        return {
            (model, task): {s: self._candidate(roots[model], task, s, share) for s in tried}
            for (model, task), tried in settings.items()
        }

    def _candidate(self, root: Pretrain | Published, task: str, setting: Setting, share: float) -> Candidate:
        cell = next(self._finetunes(root, task, self.seeds[0], setting))
        fields = {name: getattr(cell, name) for name in Finetune.model_fields} | {
            "kind": "candidate",
            "steps": max(1, round(share * cell.steps)),
            "eval_lengths": (cell.train_length,),
            "n_test": self.finetune.search.n_validation,
        }
        return Candidate.model_validate(fields)

    def _chain(
        self,
        base: Pretrain | Published | Extend,
        task: str,
        train_lengths: Sequence[int],
        steps: Sequence[int],
        eval_lengths: Sequence[int],
        n_test: int,
        seed: int,
        optim: OptimConfig,
    ) -> Iterator[Finetune]:
        """One fine-tune a train length, each on top of the previous one if they are chained."""
        settings = self.finetune
        parent: Pretrain | Published | Extend | Finetune = base
        for i, length in enumerate(train_lengths):
            cell = Finetune(
                base=parent,
                task=task,
                curriculum=CURRICULA[self.curriculum],
                train_length=length,
                eval_lengths=tuple(eval_lengths),
                n_train=settings.n_train,
                n_test=n_test,
                optim=optim,
                batch_size=settings.batch_size,
                steps=steps[min(i, len(steps) - 1)],
                precision=self.precision,
                seed=seed,
            )
            yield cell
            parent = cell if settings.chained else base

    def _ablations(self, cell: Finetune) -> Iterator[Ablate]:
        interventions = [Intervention(zero_embedding=True)]
        if cell.result_model.position not in ("nope", "alibi"):
            interventions += [
                Intervention(zero_position=True),
                Intervention(zero_position=True, zero_embedding=True),
            ]
            if cell.task in ("list_recall", "copying"):  # Tables 15 and 16
                interventions += [Intervention(position_noise=scale) for scale in self.analysis.noise_scales]
        yield from (Ablate(base=cell, intervention=intervention) for intervention in interventions)

    def _rate_distortion(self, base: Pretrain) -> Iterator[RateDistortion]:
        for beta in self.analysis.betas:
            for site in ("meta", "last_non_meta"):
                yield RateDistortion(
                    base=base,
                    site=site,
                    beta=beta,
                    curriculum=CURRICULA[self.curriculum],
                    max_tokens=self.analysis.bottleneck_tokens,
                    n_examples=self.analysis.bottleneck_examples,
                    seed=base.seed,
                )

    def _probes(self, finetunes: list[Finetune]) -> Iterator[Probe]:
        """Figures 2 and 3: each meta model's list recall at the longest train length."""
        longest = max(self.finetune.train_lengths)
        for cell in finetunes:
            if cell.task == "list_recall" and cell.train_length == longest and cell.root.meta_fraction:
                for analysis in ("sharpness", "residual", "attention"):
                    yield Probe(
                        base=cell,
                        analysis=analysis,
                        eval_length=longest,
                        n_examples=self.analysis.probe_examples,
                    )

    def _efficiency(self, model: GPTConfig) -> Iterator[Efficiency]:
        settings = self.analysis
        for size in settings.sizes or (self.size,):
            yield Efficiency(
                model=GPTConfig.model_validate(model.model_dump() | size.model_dump()),
                meta_fraction=self.pretrain.meta_fraction or 0.1,
                batch_size=settings.batch_size,
                prompt_tokens=settings.prompt_tokens,
                new_tokens=settings.new_tokens,
                repeats=settings.repeats,
                precision=self.precision,
            )
