"""The four synthetic tasks of the paper, their curriculum, and data sets of them for fine-tuning."""

from metatok.tasks.base import Example, Task
from metatok.tasks.batches import Batch, FinetuneBatches, collate, eval_batches
from metatok.tasks.curriculum import Curriculum, Phase
from metatok.tasks.dataset import TaskDataset, TaskDatasetConfig, build
from metatok.tasks.registry import TASKS, get_task, register
from metatok.tasks.text import TextSource

__all__ = [
    "TASKS",
    "Batch",
    "Curriculum",
    "Example",
    "FinetuneBatches",
    "Phase",
    "Task",
    "TaskDataset",
    "TaskDatasetConfig",
    "TextSource",
    "build",
    "collate",
    "eval_batches",
    "get_task",
    "register",
]
