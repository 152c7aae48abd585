"""Trainers and other trials on the CPUs they share."""

import subprocess
from pathlib import Path

import pytest

from metatok.experiment import Home, Ledger, Pretrain
from metatok.experiment.design import Context, with_ancestors
from metatok.experiment.execution import run_cells
from sweeps.engine.cli import parse
from tests.sweeps.conftest import ROOT, SMALLEST, environment, script

# A fine-tune that needs one CPU, an extension that needs both, and a fine-tune of the extension.
GRID = ["--preset", "smoke", "--models", "meta_rope", "--tasks", "parity", "--finetune.train-lengths", "64"]
GRID += ["--extend.scales", "4", "--extend.tasks", "list_recall", "--extend.train-lengths", "256", *SMALLEST]


@pytest.mark.timeout(180)
def test_a_trainer_gets_its_cpus_though_all_else_waits_for_it(
    tmp_path: Path, processes: list[subprocess.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home, preset = Home.open(tmp_path), parse(GRID, "finetune", "").fields
    ledger = Ledger.open(home)
    bases = [cell for cell in with_ancestors(preset.cells()) if isinstance(cell, Pretrain)]
    run_cells(bases, ledger, Context(home, preset.run), {})

    sweep = subprocess.Popen(
        script("sweeps/finetune.py", *GRID), env=environment(tmp_path), cwd=ROOT, text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    processes.append(sweep)
    told, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, told
    (extension,) = ledger.records("extend")
    first, second = sorted(ledger.records("finetune"), key=lambda record: record.end_time or 0)
    assert first.end_time is not None
    assert extension.end_time is not None
    assert first.end_time < extension.end_time < (second.end_time or 0)
