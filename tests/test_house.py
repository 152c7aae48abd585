"""The house as README draws it: which folders there are, which way imports run, and what stays light."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.sweeps.conftest import environment

ROOT = Path(__file__).parents[1]
PACKAGES = ("metatok", "sweeps", "reports")
# Each may import what stands after it.
LAYERS = (
    ("reports", "sweeps"),
    ("metatok.experiment.__main__",),
    ("metatok.experiment.execution",),
    ("metatok.experiment.ledger",),
    ("metatok.experiment.design",),
    ("metatok.experiment.home", "metatok.experiment.inputs"),
    ("metatok.analysis", "metatok.evaluation", "metatok.training"),
    ("metatok.tasks", "metatok.data", "metatok.model"),
)
HEAVY = ("torch", "transformers", "ray")


def files() -> dict[str, Path]:
    """module -> its file, faces apart: a face is its stub."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path.with_suffix(".pyi") if path.with_suffix(".pyi").exists() else path
    return found


MODULES = files()


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of ours that a module names anywhere, also for types alone; faces looked through."""
    return frozenset(found for target, name in _statements(module) if (found := _resolved(target, name)))


def _statements(module: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            target = f"{module}.{node.module}" if node.level else node.module or ""
            yield from ((target, alias.name) for alias in node.names)


def _resolved(target: str, name: str) -> str | None:
    """The module that `from target import name` is about."""
    if f"{target}.{name}" in MODULES:
        return f"{target}.{name}"
    if target in MODULES and MODULES[target].suffix == ".pyi":
        for inner, shown in _statements(target):
            if shown == name:
                return _resolved(inner, shown)
    return target if target in MODULES else None


def layer(module: str) -> int | None:
    for i, members in enumerate(LAYERS):
        if any(module == member or module.startswith(f"{member}.") for member in members):
            return i
    return None


def test_imports_go_in_no_circle() -> None:
    faces = {name for name, path in MODULES.items() if path.suffix == ".pyi"}
    graph = {name: imported(name) - {name} for name in MODULES.keys() - faces}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)  # raises CycleError


def test_imports_run_one_way() -> None:
    upward = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imported(module)
        if (here := layer(module)) is not None and (there := layer(other)) is not None and there < here
    ]
    assert not upward


def test_readme_draws_the_house_as_it_stands() -> None:
    (drawn,) = re.findall(r"## The house\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES.values()}
    folders |= {"cluster", "tests"}
    assert {line.split()[0] for line in drawn.splitlines()} == folders - {"metatok"}


def test_contributing_is_short_and_its_files_are_there() -> None:
    (section,) = re.findall(r"## Contributing\n\n(.*?)\n\n## ", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(section.splitlines()) <= 25
    for path in re.findall(r"`((?:metatok|tests|reports|sweeps)/[\w/.]+)`", section):
        if not any(word in path for word in ("NAME", "GROUP")):
            assert (ROOT / path).exists(), path


def test_no_module_is_two() -> None:
    assert not [name for name, path in MODULES.items() if len(path.read_text().splitlines()) > 400]


@pytest.mark.parametrize(
    "code",
    [
        "import metatok.experiment as e; e.get_preset('paper').cells(); assert 'mlflow' not in sys.modules",
        "from metatok.model import GPTConfig, Intervention; GPTConfig().num_parameters()",
        "from metatok.tasks import get_task; get_task('parity').example(1, 0, 0)",
        "import metatok.experiment as e; e.Ledger.open().missing(e.get_preset('smoke').cells())",
        "from sweeps.engine.cli import main; sys.argv[1:] = ['--help']; main()",
        "from sweeps.engine.cli import main; sys.argv[1:] = ['--dry-run']; main()",
        "from sweeps.engine.cli import main; sys.argv[1:] = ['--tasks', 'nosuch']; main()",
        "from metatok.experiment.__main__ import main; main(['status'])",
        "from metatok.experiment.__main__ import main; main(['gc'])",
        "from reports.build_tables import main; sys.argv[1:] = ['--preset', 'nosuch']; main()",
    ],
)
def test_what_needs_no_torch_loads_none(code: str, tmp_path: Path) -> None:
    look = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint(*sys.modules, file=sys.stderr)"
    settings = environment(tmp_path, PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, "-c", look], env=settings, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not {*HEAVY} & {*done.stderr.split()}


def test_a_mistake_is_told_without_mlflow(tmp_path: Path) -> None:
    for mistake in (
        ["--preset", "nosuch"],
        ["--models", "bert"],
        ["--nofield"],
        ["--finetune.train-lengths", "512"],
        ["--corpus.source", "files", "--corpus.paths", str(tmp_path / "nosuch.json")],
    ):
        look = f"import sys\nfrom sweeps.engine.cli import main\nsys.argv[1:] = {mistake}\n"
        look += "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'mlflow' in sys.modules)"
        settings = environment(tmp_path, PYTHONPATH=str(ROOT))
        done = subprocess.run([sys.executable, "-c", look], env=settings, text=True, capture_output=True)
        assert done.stdout.split() == ["2", "False"], done.stderr
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("face", sorted(name for name, path in MODULES.items() if path.suffix == ".pyi"))
def test_every_public_name_is_there(face: str) -> None:
    package = importlib.import_module(face)
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)
