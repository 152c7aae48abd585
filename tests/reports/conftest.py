"""One small ledger a session, written through the real MLflow with results known in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from metatok.experiment import Cell, Finetune, Home, Ledger, Preset
from reports.exhibits.exhibit import Exhibit
from reports.report import Report, build_report

from .ledgers import all_cells, right, small_preset, write


@contextmanager
def open_ledger(home: Home) -> Iterator[Ledger]:
    """The home's own ledger, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Ledger.open(home)


class Small(NamedTuple):
    """The report of a ledger whose cells `absent` were never run, and that holds one cell of another
    configuration, `other`."""

    home: Home
    out: Path
    preset: Preset
    report: Report
    absent: list[Cell]
    other: Finetune

    def exhibit(self, name: str) -> Exhibit:
        return next(e for e in self.report.exhibits if e.name == name)

    def csv(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.out / f"{name}.csv")


def is_absent(cell: Cell) -> bool:
    """gpt2_ape's parity at 256 in both seeds, and one ablation of one seed."""
    labels = cell.labels
    if labels.get("setting") == "neither":
        return (labels["task"], labels["train_length"], labels["seed"]) == ("parity", 128, 1)
    return (labels["model"], labels.get("task"), labels.get("train_length")) == ("gpt2_ape", "parity", 256)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    home, preset = Home.open(tmp_path_factory.mktemp("home")), small_preset()
    cells = all_cells(preset)
    absent = [cell for cell in cells if is_absent(cell)]
    tuned = next(c for c in cells if c.slug == "meta_rope-list_recall-128-s0" and isinstance(c, Finetune))
    other = Finetune.model_validate(tuned.model_dump() | {"batch_size": 7})
    out = home.root / "report"
    with open_ledger(home) as ledger:
        write(ledger, [cell for cell in cells if not is_absent(cell)], "small", right)
        write(ledger, [other], "small", lambda cell, length, n: np.ones(n, bool))
        return Small(home, out, preset, build_report(home, out, expected=preset), absent, other)


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A ledger without a run."""
    home = Home.open(tmp_path_factory.mktemp("empty"))
    with open_ledger(home):
        return home
