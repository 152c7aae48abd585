"""Tasks by name: the paper's four, and your own by entry point (group `metatok.tasks`) or by file."""

import importlib.util
import inspect
import os
import re
import sys
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated

from pydantic import AfterValidator

from metatok.errors import ConfigError
from metatok.tasks.base import Task
from metatok.tasks.copying import Copying
from metatok.tasks.curriculum import Curriculum
from metatok.tasks.list_recall import ListRecall
from metatok.tasks.parity import Parity
from metatok.tasks.segment_counting import SegmentCounting
from metatok.tasks.text import TextSource

TASKS: dict[str, type[Task]] = {task.name: task for task in (ListRecall, SegmentCounting, Parity, Copying)}

# Files with tasks, joined by os.pathsep. A file that is given by path is added, so that the processes
# started from here find its task by name.
TASK_FILES = "METATOK_TASKS"


def register(task: type[Task]) -> type[Task]:
    """Adds a task class under its `name`; usable as a decorator. A name is taken once."""
    _add(_name_of(task), task)
    return task


def get_task(name: str, curriculum: Curriculum | None = None, text: TextSource | None = None) -> Task:
    """The task of that name; `curriculum` defaults to Table 6, copying's `text` to the embedded corpus.

    Raises ConfigError for an unknown name.
    """
    return task_class(name)(curriculum, text)


def task_class(name: str) -> type[Task]:
    """The class of that name, or in the file of that path. Raises ConfigError where there is none."""
    return TASKS[task_name(name)]


def task_name(name: str) -> str:
    """The name under which cells and data sets keep a task.

    A path ending in .py gives `name@digest`: the name of the class in that file and a hash of the file, so
    that a task that was edited is another one. Any other name is given back.
    Raises ConfigError where there is no such task.
    """
    if name.endswith(".py"):
        return _load_file(Path(name))
    if name not in TASKS:
        for entry in entry_points(group="metatok.tasks"):
            if entry.name == name:
                register(entry.load())
    if name not in TASKS:
        for path in filter(None, os.environ.get(TASK_FILES, "").split(os.pathsep)):
            _load_file(Path(path))
    if name not in TASKS:
        raise ConfigError(
            f"task={name!r}: unknown, choose one of {', '.join(sorted(TASKS))}, or give a .py file, to other "
            f"machines by {TASK_FILES}"
        )
    return name


TaskName = Annotated[str, AfterValidator(task_name)]


def _add(name: str, task: type[Task]) -> None:
    known = TASKS.setdefault(name, task)
    if known is not task:
        raise ConfigError(f"task name={task.name!r}: {known.__qualname__} has it, choose another")


def _name_of(task: type[Task]) -> str:
    if inspect.isabstract(task):
        raise ConfigError(f"task {task.__qualname__}: it has no example(), which a task needs")
    name = getattr(task, "name", "")
    if not re.fullmatch(r"\w+", name):
        raise ConfigError(f"task {task.__qualname__}: name={name!r}, give it one of letters, digits and _")
    return name


def _load_file(path: Path) -> str:
    """Registers the one task class that the file defines, and gives its name. The same file runs once."""
    path = path.expanduser().absolute()
    try:
        digest = sha256(path.read_bytes()).hexdigest()[:8]
    except OSError as error:
        raise ConfigError(f"task={str(path)!r}: {error.strerror}; give a file that defines a task") from error
    module = sys.modules.get(f"metatok_task_{digest}") or _run(path, f"metatok_task_{digest}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Task) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise ConfigError(f"task={str(path)!r}: the file defines {len(classes)} subclasses of Task, not one")
    name = f"{_name_of(classes[0])}@{digest}"
    _add(name, classes[0])
    files = os.environ.get(TASK_FILES, "").split(os.pathsep)
    if str(path) not in files:
        os.environ[TASK_FILES] = os.pathsep.join(filter(None, [*files, str(path)]))
    return name


def _run(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"task={str(path)!r}: {type(error).__name__}: {error}") from error
    return module
