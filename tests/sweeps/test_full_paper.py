"""The whole paper in miniature, with README's own task: killed, resumed, repeated, reported."""

import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from metatok.experiment import Home, Ledger
from metatok.experiment.design import kind_names
from metatok.experiment.ledger import RunRecord
from tests.sweeps.conftest import ROOT, SMALLEST, environment, script, write_readmes_task

# Two models and one train length still fill every exhibit.
GRID = ("--models", "gpt2_ape", "meta_rope", "--finetune.train-lengths", "64")
TASKS = ("list_recall", "segment_counting", "parity", "copying")


def records(ledger: Ledger, status: str | None) -> list[RunRecord]:
    kinds = list(kind_names())
    return [record for kind in kinds for record in ledger.records(kind, status)]


def wait_for_finetunes(ledger: Ledger, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 180
    while len(ledger.records("finetune")) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "no fine-tune finished"
        time.sleep(0.2)


@pytest.mark.timeout(420)
def test_a_killed_sweep_goes_on_and_ends_complete(tmp_path: Path, processes: list[subprocess.Popen]) -> None:
    tasks = ("--tasks", *TASKS, str(write_readmes_task(tmp_path)))
    command = script("sweeps/full_paper.py", "--preset", "smoke", *GRID, *tasks, *SMALLEST)
    home = Home.open(tmp_path)
    ledger = Ledger.open(home)

    first = subprocess.Popen(
        command, env=environment(tmp_path), cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    processes.append(first)
    wait_for_finetunes(ledger, 3, first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = {record.fingerprint: record for record in records(ledger, "FINISHED")}

    second = subprocess.run(command, env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True)
    assert second.returncode == 0, second.stdout + second.stderr
    after = records(ledger, None)
    assert {record.status for record in after} == {"FINISHED"}
    assert set(Counter(record.fingerprint for record in after).values()) == {1}
    runs = {record.fingerprint: record for record in after}
    for fingerprint, record in before.items():
        assert (runs[fingerprint].run_id, runs[fingerprint].end_time) == (record.run_id, record.end_time)

    start = time.monotonic()
    third = subprocess.run(command, env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True)
    assert third.returncode == 0
    assert "Nothing to do" in third.stdout
    assert time.monotonic() - start < 20
    assert [record.run_id for record in records(ledger, None)] == [record.run_id for record in after]

    finetunes = [r for r in after if r.kind == "finetune"]
    own = [r for r in finetunes if re.fullmatch(r"reverse@[0-9a-f]{8}", r.params["task"])]
    assert sorted(r.params["model"] for r in own) == ["gpt2_ape", "meta_rope"]
    assert all(r.metrics["n/64"] == 10 and 0 < r.metrics["majority_share/64"] <= 1 for r in own)

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
