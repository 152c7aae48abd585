from .base import Example, Task
from .batches import Batch, FinetuneBatches, Prompts, collate, eval_batches, prompts
from .curriculum import Curriculum, Phase
from .dataset import TaskDataset, TaskDatasetConfig, build
from .export import to_datasets
from .registry import TASKS, TaskName, get_task, register
from .text import TextSource

__all__ = [
    "TASKS",
    "Batch",
    "Curriculum",
    "Example",
    "FinetuneBatches",
    "Phase",
    "Prompts",
    "Task",
    "TaskDataset",
    "TaskDatasetConfig",
    "TaskName",
    "TextSource",
    "build",
    "collate",
    "eval_batches",
    "get_task",
    "prompts",
    "register",
    "to_datasets",
]
