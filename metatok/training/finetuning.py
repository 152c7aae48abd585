"""Fine-tuning on a task: loss on completion tokens only (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from metatok.model import GPT
from metatok.tasks.batches import Batch, FinetuneBatches
from metatok.tasks.dataset import TaskDataset
from metatok.training.loop import LoopState, train

REACHED = 0.9  # the exact match that steps_to_90 is about


@dataclass(frozen=True)
class Stage:
    """A phase to be learned before the next: examples to train on, and others that tell when it is."""

    train: TaskDataset
    validation: TaskDataset


@dataclass(frozen=True)
class Validation:
    """How a fine-tune is watched while it trains.

    every: optimiser steps between two looks. examples: of the whole set's distribution. score(model,
    examples): exact match. stages: phases taught one after the other before the whole set, each until its
    exact match is `learned_at`; one that the model knows already costs no step, one that it does not learn
    gives way after an equal share of the steps that were left.
    """

    every: int
    examples: TaskDataset
    score: Callable[[GPT, TaskDataset], float]
    stages: Sequence[Stage] = ()
    learned_at: float = 1.0


def finetune(
    model: GPT,
    dataset: TaskDataset,
    *,
    batch_size: int,
    seed: int,
    steps: int,
    validation: Validation | None = None,
    resume: dict[str, Any] | None = None,
    **training: Any,
) -> LoopState:
    """Train on the task's examples, each once an epoch, bucketed by length.

    With a validation, `on_log` also gets validation_exact_match, and stage where there are stages; the
    state's progress has steps_to_90, the first look at which REACHED was, and learned, the count of stages.
    `training`: the other arguments of `loop.train`.
    """
    if validation is None:
        batches = FinetuneBatches(dataset, batch_size, seed).batch
        return train(model, batches, steps=steps, resume=resume, **training)
    sets = [*(stage.train for stage in validation.stages), dataset]
    lessons = _Lessons(model, validation, [FinetuneBatches(each, batch_size, seed) for each in sets], steps)
    if resume:
        model.load_state_dict(resume["weights"])
        lessons.progress |= resume["meta"]["progress"]
    else:
        lessons.advance(0)
    return train(
        model,
        lessons.batch,
        steps=steps,
        resume=resume,
        progress=lessons.progress,
        evaluate_every=validation.every,
        on_evaluate=lessons.look,
        **training,
    )


class _Lessons:
    """Which batch a step takes. It depends on the step and on `progress`, which a checkpoint keeps."""

    def __init__(
        self, model: GPT, validation: Validation, batches: Sequence[FinetuneBatches], steps: int
    ) -> None:
        self._model, self._validation, self._batches, self._steps = model, validation, batches, steps
        self.progress: dict[str, Any] = {"stage": 0, "since": 0, "learned": 0, "steps_to_90": None}

    def batch(self, step: int) -> Batch:
        return self._batches[self.progress["stage"]].batch(step - self.progress["since"])

    def look(self, step: int) -> dict[str, float]:
        """Score the model; what is learned by now is left behind."""
        stage = self.progress["stage"]
        self.advance(step)
        score = self._validation.score(self._model, self._validation.examples)
        if score >= REACHED and self.progress["steps_to_90"] is None:
            self.progress["steps_to_90"] = step
        metrics = {"validation_exact_match": score}
        return metrics | ({"stage": stage + 1} if self._validation.stages else {})

    def advance(self, step: int) -> None:
        """On to the first stage that is not learned yet, or to the whole set."""
        stages, progress = self._validation.stages, self.progress
        while progress["stage"] < len(stages):
            examples = stages[progress["stage"]].validation
            learned = self._validation.score(self._model, examples) >= self._validation.learned_at
            share = (self._steps - progress["since"]) / (len(stages) - progress["stage"] + 1)
            if not learned and step - progress["since"] < share:
                return
            progress |= {
                "stage": progress["stage"] + 1,
                "since": step,
                "learned": progress["learned"] + learned,
            }
