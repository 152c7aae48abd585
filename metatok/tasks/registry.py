"""Tasks by name. A task of your own is registered here, or by an entry point in group `metatok.tasks`."""

from importlib.metadata import entry_points

from metatok.errors import ConfigError
from metatok.tasks.base import Task
from metatok.tasks.copying import Copying
from metatok.tasks.curriculum import Curriculum
from metatok.tasks.list_recall import ListRecall
from metatok.tasks.parity import Parity
from metatok.tasks.segment_counting import SegmentCounting
from metatok.tasks.text import TextSource

TASKS: dict[str, type[Task]] = {task.name: task for task in (ListRecall, SegmentCounting, Parity, Copying)}


def register(task: type[Task]) -> type[Task]:
    """Adds a task class under its `name`; usable as a decorator. A name is taken once."""
    known = TASKS.setdefault(task.name, task)
    if known is not task:
        raise ConfigError(f"task name={task.name!r}: {known.__qualname__} has it, choose another")
    return task


def get_task(name: str, curriculum: Curriculum | None = None, text: TextSource | None = None) -> Task:
    """The task of that name; `curriculum` defaults to Table 6, copying's `text` to the embedded corpus.

    Raises ConfigError for an unknown name.
    """
    return task_class(name)(curriculum, text)


def task_class(name: str) -> type[Task]:
    """The class registered under `name`. Raises ConfigError for an unknown name."""
    if name not in TASKS:
        for entry in entry_points(group="metatok.tasks"):
            if entry.name == name:
                register(entry.load())
    if name not in TASKS:
        raise ConfigError(f"task={name!r}: unknown, choose one of {', '.join(sorted(TASKS))}")
    return TASKS[name]
