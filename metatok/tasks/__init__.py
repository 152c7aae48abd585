"""The four synthetic tasks of the paper, their curriculum, and data sets of them for fine-tuning."""

from metatok.tasks.base import Example, Task
from metatok.tasks.batches import Batch, FinetuneBatches, collate, eval_batches
from metatok.tasks.curriculum import Curriculum, Phase
from metatok.tasks.dataset import TaskDataset, TaskDatasetConfig, build
from metatok.tasks.export import to_datasets
from metatok.tasks.registry import TASKS, TaskName, get_task, register
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
    "TaskName",
    "TextSource",
    "build",
    "collate",
    "eval_batches",
    "get_task",
    "register",
    "to_datasets",
]
