"""One home and ledger for the tests that need no fresh one, and processes that start in a blink."""

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from metatok.experiment import Home, Ledger, Pretrain

from . import tiny

ROOT = Path(__file__).parents[2]
_seeds = itertools.count(1000)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("METATOK_HOME", raising=False)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home in a folder with a space in its name."""
    return Home.open(tmp_path_factory.mktemp("experiment") / "my home")


@pytest.fixture(scope="session")
def ledger(home: Home) -> Ledger:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return Ledger.open(home)


@pytest.fixture
def fresh_home(tmp_path: Path, home: Home) -> Home:
    """A home with a ledger still to come, and the datasets of `home`."""
    home.datasets.mkdir(exist_ok=True)
    return tiny.home_with_datasets(tmp_path / "home", home.datasets)


@pytest.fixture
def new_cell() -> Callable[..., Pretrain]:
    """Makes pre-trainings that no other test has."""
    return lambda **fields: tiny.pretrain(seed=next(_seeds), **fields)


@pytest.fixture(scope="session")
def processes() -> Iterator[ForkServerContext]:
    """Starts processes that have everything imported already; their functions are in children.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT), *sys.path])
        patch.setenv("PYTHONPATH", str(ROOT))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.experiment.children"])
        yield context
