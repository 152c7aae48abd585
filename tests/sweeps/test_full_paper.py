"""The whole paper in miniature: run, repeated, reported."""

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from metatok.experiment import Home, Ledger
from metatok.experiment.cells import KINDS
from metatok.experiment.ledger import RunRecord
from tests.sweeps.conftest import ROOT, SMALLEST, environment, script

# Two models and one train length still fill every exhibit.
GRID = ("--models", "gpt2_ape", "meta_rope", "--finetune.train-lengths", "64")
COMMAND = script("sweeps/full_paper.py", "--preset", "smoke", *GRID, *SMALLEST)


def records(ledger: Ledger) -> list[RunRecord]:
    kinds = [kind.model_fields["kind"].default for kind in KINDS]
    return [record for kind in kinds for record in ledger.records(kind, None)]


@pytest.mark.timeout(420)
def test_the_whole_paper_runs_once_and_fills_every_exhibit(tmp_path: Path) -> None:
    first = subprocess.run(COMMAND, env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True)
    assert first.returncode == 0, first.stdout + first.stderr
    ledger = Ledger.open(Home.open(tmp_path))
    after = records(ledger)
    assert {record.status for record in after} == {"FINISHED"}
    assert set(Counter(record.fingerprint for record in after).values()) == {1}

    start = time.monotonic()
    second = subprocess.run(COMMAND, env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True)
    assert second.returncode == 0
    assert "Nothing to do" in second.stdout
    assert time.monotonic() - start < 20
    assert [record.run_id for record in records(ledger)] == [record.run_id for record in after]

    report = subprocess.run(
        script("reports/build_tables.py"), env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True
    )
    assert report.returncode == 0, report.stderr
    folder = tmp_path / "report"
    for number in range(1, 18):
        text = (folder / f"table_{number:02}.md").read_text()
        assert "missing" not in text.lower(), text
    assert {f"figure_{n}.{kind}" for n in (1, 2, 3) for kind in ("png", "svg")} <= {
        path.name for path in folder.iterdir()
    }
    assert (folder / "report.html").exists()
