"""Tasks from a file and from another package."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metatok.errors import ConfigError
from metatok.tasks import TASKS, TaskDatasetConfig, get_task
from metatok.tasks.registry import task_name

SOURCE = """
from metatok.tasks import Example, Task

class Echo(Task):
    name = "echo"

    def example(self, phase, seed, index):
        number = int(self.rng(phase, seed, index).integers(1000))
        return Example((f"Say {number}.", ""), str(number), phase)
"""


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setenv("METATOK_TASKS", "")
    before = set(TASKS)
    yield
    for name in set(TASKS) - before:
        del TASKS[name]


def test_a_file_is_a_task_and_an_edited_file_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    name = task_name("mine.py")
    assert name.startswith("echo@")
    assert task_name(name) == task_name(str(tmp_path / "mine.py")) == name
    example = get_task("mine.py").example(1, 0, 7)
    assert example.prompt == f"Say {example.completion}. _PAUSE_"
    assert example == get_task(name).example(1, 0, 7) != get_task(name).example(1, 0, 8)
    assert TaskDatasetConfig(task="mine.py", max_tokens=64, n_examples=1).task == name
    (tmp_path / "mine.py").write_text(SOURCE.replace("1000", "100"))
    assert task_name("mine.py") != name


def test_a_package_offers_a_task_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo_package.py").write_text(SOURCE)
    info = tmp_path / "echo_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metatok.tasks]\necho = echo_package:Echo\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert get_task("echo").example(1, 0, 7).prompt.startswith("Say ")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (None, "No such file or directory; give a file that defines a task"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("class Echo(:", r"SyntaxError: invalid syntax .*line 1"),
        ("from metatok.tasks import Task", "the file defines 0 subclasses of Task, not one"),
        (SOURCE + "class Other(Echo): ...", "the file defines 2 subclasses of Task, not one"),
        (SOURCE.replace('"echo"', '"an echo"'), "task Echo: name='an echo', give it one of letters"),
        (SOURCE.replace("def example", "def examples"), "task Echo: it has no example()"),
    ],
)
def test_mistakes_in_a_file_are_told(source: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(ConfigError, match=told) as raised:
        task_name(str(path))
    assert "\n" not in str(raised.value)
