"""Fine-tuning on a task: loss on completion tokens only (paper section 4.2)."""

from __future__ import annotations

from typing import Any

from metatok.model import GPT
from metatok.tasks.batches import FinetuneBatches
from metatok.tasks.dataset import TaskDataset
from metatok.training.loop import LoopState, train


def finetune(model: GPT, dataset: TaskDataset, *, batch_size: int, seed: int, **training: Any) -> LoopState:
    """Train on the task's examples, each once an epoch, bucketed by length.

    `training`: the other arguments of `loop.train`.
    """
    return train(model, FinetuneBatches(dataset, batch_size, seed).batch, **training)
