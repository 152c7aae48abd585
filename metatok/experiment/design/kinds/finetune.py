"""Fine-tuning on one task, and scoring by length (paper section 4.2, Tables 1 and 7-10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from metatok import evaluation, tasks, training
from metatok.config import Count, Natural
from metatok.experiment.design.cell import Cell, check_positions
from metatok.experiment.design.context import Context, Metrics, Outcome, table
from metatok.experiment.design.cost import Cost, forward_cost, training_cost
from metatok.experiment.design.kinds.extend import Extend
from metatok.experiment.design.kinds.pretrain import Pretrain
from metatok.experiment.design.kinds.published import Published
from metatok.experiment.design.preset import Preset
from metatok.experiment.design.search import Setting
from metatok.experiment.design.training import Trained
from metatok.experiment.inputs import InputConfig
from metatok.model import GPTConfig, Intervention
from metatok.tasks.curriculum import CURRICULA, Curriculum
from metatok.tasks.dataset import Split, TaskDatasetConfig
from metatok.tasks.registry import TaskName
from metatok.training.optim import OptimConfig

if TYPE_CHECKING:
    from metatok.model import GPT


def _is_off(value: float | None) -> bool:
    return not value


class Finetune(Trained):
    """Fine-tune on one task up to one train length, then score at every eval length.

    base: a pre-trained or extended model, or the fine-tune of the previous train length. n_test: test
    examples an eval length. Eval length E scores prompts of more than E/2 tokens that with their
    completion have at most E. validate_every: steps between two scores on n_validation validation examples of
    up to the train length, which give the steps to 90% exact match; 0: none. learned_at: the phases that the
    train length reaches are taught one after the other, each until that exact match on its own validation
    examples or for an equal share of the steps left, then all together; None: all together from the start.
    """

    version: ClassVar[int] = 3
    keeps_weights = True
    eval_split: ClassVar[Split] = "test"
    kind: Literal["finetune"] = "finetune"
    base: Annotated[Pretrain | Published | Extend | Finetune, Field(discriminator="kind")]
    task: TaskName
    curriculum: Curriculum = Curriculum()
    train_length: Count
    eval_lengths: tuple[Count, ...]
    n_train: Count = 90_000
    n_test: Count = 10_000
    batch_size: Count = 64
    # Left out of a fingerprint where they are off, as cells were before there were any.
    validate_every: Natural = Field(default=0, exclude_if=_is_off)
    n_validation: Natural = Field(default=0, exclude_if=_is_off)
    learned_at: float | None = Field(default=None, gt=0, le=1, exclude_if=_is_off)

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Finetune]:
        for base in cells:
            if isinstance(base, Extend):
                yield from _long_fine_tunes(base, preset)
        for task in preset.tasks:
            for base in cells:
                if isinstance(base, Pretrain | Published):
                    yield from fine_tunes(base, task, preset, seed)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        context = self.result_model.context_length
        if self.train_length > context:
            raise ValueError(
                f"train_length={self.train_length} is over the context of {self.base.model_name}, "
                f"{context} tokens; take a shorter one or a model with a longer context"
            )
        if not self.eval_lengths:
            raise ValueError("eval_lengths=(): give at least one; learned positions end at the context")
        check_positions(self, self.base, "eval_lengths", max(self.eval_lengths))
        if bool(self.validate_every) != bool(self.n_validation):
            raise ValueError(
                f"validate_every={self.validate_every}, n_validation={self.n_validation}: give both, or 0 "
                "for both to train without a look at validation examples"
            )
        if self.learned_at is not None and not self.validate_every:
            raise ValueError(
                f"learned_at={self.learned_at}: only looks tell what is learned; give validate_every"
            )
        return self

    @property
    def result_model(self) -> GPTConfig:
        return self.base.result_model

    @property
    def labels(self) -> dict[str, str | int | float]:
        return {
            "model": self.model_name,
            "task": self.task,
            "train_length": self.train_length,
            "seed": self.seed,
        }

    @property
    def of_extension(self) -> bool:
        """Whether the model's context was extended."""
        return any(isinstance(cell, Extend) for cell in self.lineage)

    def trial_key(self, share_trainer: bool) -> tuple[str, str]:
        """The train lengths of one fine-tune run one after the other."""
        first = next(cell for cell in self.lineage if isinstance(cell, Finetune))
        return self.kind, first.fingerprint

    def cost(self) -> Cost:
        length = self.train_length
        training = training_cost(self.result_model, self.steps * self.batch_size * length, length)
        return training + self._watching_cost() + self.scoring_cost()

    def _watching_cost(self) -> Cost:
        """Of the looks at validation examples, and at a phase's own while phases are taught in turn."""
        if not self.validate_every:
            return Cost()
        looks = -(-self.steps // self.validate_every) * (1 if self.learned_at is None else 2)
        return forward_cost(
            self.result_model, looks * self.n_validation * self.train_length, self.train_length
        )

    def scoring_cost(self) -> Cost:
        model = self.result_model
        costs = (forward_cost(model, self.n_test * length, length) for length in self.eval_lengths)
        return sum(costs, Cost())

    def inputs(self) -> Iterator[InputConfig]:
        yield train_set(self)
        if self.validate_every:
            yield validation_set(self)
        for phase in self._phases_in_turn():
            yield from (train_set(self, phase), validation_set(self, phase))
        yield from (eval_set(self, length) for length in self.eval_lengths)

    def run(self, context: Context) -> Outcome:
        model = self.base.load_model(context)
        examples = context.inputs.task_dataset(train_set(self))
        settings = context.loop(context.settings.finetune_micro_batch_size)

        def run(model: GPT, **options: Any) -> training.LoopState:
            return training.finetune(
                model,
                examples,
                batch_size=self.batch_size,
                seed=self.seed,
                validation=self._validation(context),
                settings=settings,
                **options,
            )

        checkpoint, progress = self.train(context, model, run)
        outcome = self.scored(model, context, checkpoint=checkpoint)
        return replace(outcome, metrics={**outcome.metrics, **self._validated(progress)})

    def _phases_in_turn(self) -> tuple[int, ...]:
        """The phases that are taught one after the other."""
        return () if self.learned_at is None else self.curriculum.phases_for(self.train_length)

    def _validation(self, context: Context) -> training.Validation | None:
        if not self.validate_every:
            return None
        size, precision, device = context.settings.eval_batch_size, self.precision, context.device

        def score(model: GPT, examples: tasks.TaskDataset) -> float:
            return evaluation.evaluate(model, examples, size, None, device, precision).exact_match

        made = context.inputs.task_dataset
        stages = [
            training.Stage(made(train_set(self, phase)), made(validation_set(self, phase)))
            for phase in self._phases_in_turn()
        ]
        examples = made(validation_set(self))
        return training.Validation(self.validate_every, examples, score, stages, self.learned_at or 1.0)

    def _validated(self, progress: Mapping[str, Any]) -> Metrics:
        """steps_to_90 where it was reached, with the number of examples that it was seen on."""
        if not self.validate_every:
            return {}
        reached, learned = progress["steps_to_90"], progress["learned"]
        metrics: Metrics = {"n_validation": self.n_validation}
        metrics |= {} if reached is None else {"steps_to_90": reached}
        return metrics | ({} if self.learned_at is None else {"phases_learned": learned})

    def scored(
        self,
        model: GPT,
        context: Context,
        intervention: Intervention | None = None,
        checkpoint: str | None = None,
    ) -> Outcome:
        """Exact match and token accuracy at every eval length, with per-example records."""
        metrics: Metrics = {}
        columns: dict[str, list[np.ndarray]] = {}
        size = context.settings.eval_batch_size
        for length in self.eval_lengths:
            examples = context.inputs.task_dataset(eval_set(self, length))
            records = evaluation.evaluate(model, examples, size, intervention, context.device, self.precision)
            metrics |= {
                f"exact_match/{length}": records.exact_match,
                f"token_accuracy/{length}": records.token_accuracy,
                f"n/{length}": len(records),
                f"majority_share/{length}": examples.majority_share,
            }
            for name, values in {"eval_length": np.full(len(records), length), **vars(records)}.items():
                columns.setdefault(name, []).append(values)
        records_table = table({name: np.concatenate(parts) for name, parts in columns.items()})
        return Outcome(metrics, {"records": records_table}, checkpoint)


def train_set(cell: Finetune, phase: int | None = None) -> TaskDatasetConfig:
    """The train examples, of one phase or of all: at most `train_length` tokens, prompt and completion."""
    size = {"max_tokens": cell.train_length, "n_examples": cell.n_train}
    return task_set(cell, split="train", phase=phase, seed=cell.seed, **size)


def validation_set(cell: Finetune, phase: int | None = None) -> TaskDatasetConfig:
    """Validation examples distributed as the train examples are; the same for all models and seeds."""
    size = {"max_tokens": cell.train_length, "n_examples": cell.n_validation}
    return task_set(cell, split="validation", phase=phase, **size)


def eval_set(cell: Finetune, eval_length: int) -> TaskDatasetConfig:
    """The test (of a search: validation) examples of an eval length: a prompt of more than half of it, at
    most all of it in all.
    """
    return task_set(
        cell,
        split=cell.eval_split,
        min_tokens=eval_length // 2,
        max_tokens=eval_length,
        n_examples=cell.n_test,
    )


def task_set(cell: Any, **fields: object) -> TaskDatasetConfig:
    """Examples of a cell's task and curriculum, in its root's tokens."""
    root = cell.root
    shared = {
        "task": cell.task,
        "curriculum": cell.curriculum,
        "tokenizer": root.tokenizer,
        "corpus": root.corpus,
    }
    return TaskDatasetConfig.model_validate(shared | fields)


def fine_tunes(
    base: Pretrain | Published, task: str, preset: Preset, seed: int, setting: Setting | None = None
) -> Iterator[Finetune]:
    """A base's fine-tunes on a task, one a train length.

    setting: learning rate and steps; None: what a search chose, or the preset's.
    """
    # Learned positions end at the context; relative ones are tested beyond it.
    limit = base.model.context_length if base.model.position == "ape" else None
    settings = preset.finetune
    eval_lengths = [n for n in settings.eval_lengths if limit is None or n <= limit]
    steps, optim = settings.steps_by_task.get(task, settings.steps), settings.optim
    setting = setting or settings.choice(base.model_name, task)
    if setting is not None:
        steps = tuple(max(1, round(setting.step_factor * n)) for n in steps)
        optim = optim.at_rate(setting.learning_rate)
    lengths = settings.train_lengths
    return _chain(base, task, preset, lengths, steps, eval_lengths, settings.n_test, seed, optim)


def _long_fine_tunes(base: Extend, preset: Preset) -> Iterator[Finetune]:
    settings, optim = preset.extend, preset.finetune.optim
    lengths = [n for n in settings.train_lengths if n <= base.result_model.context_length]
    steps, evaluated, n_test = settings.finetune_steps, settings.eval_lengths, settings.n_test
    for task in settings.tasks:
        yield from _chain(base, task, preset, lengths, steps, evaluated, n_test, base.seed, optim)


def _chain(
    base: Pretrain | Published | Extend,
    task: str,
    preset: Preset,
    train_lengths: Sequence[int],
    steps: Sequence[int],
    eval_lengths: Sequence[int],
    n_test: int,
    seed: int,
    optim: OptimConfig,
) -> Iterator[Finetune]:
    """One fine-tune a train length, each on top of the previous one if they are chained."""
    settings = preset.finetune
    parent: Pretrain | Published | Extend | Finetune = base
    for i, length in enumerate(train_lengths):
        cell = Finetune(
            base=parent,
            task=task,
            curriculum=CURRICULA[preset.curriculum],
            train_length=length,
            eval_lengths=tuple(eval_lengths),
            n_train=settings.n_train,
            n_test=n_test,
            optim=optim,
            batch_size=settings.batch_size,
            steps=steps[min(i, len(steps) - 1)],
            precision=preset.precision,
            seed=seed,
            validate_every=settings.validate_every,
            n_validation=settings.n_validation,
            learned_at=settings.learned_at,
        )
        yield cell
        parent = cell if settings.chained else base
