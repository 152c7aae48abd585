"""A number that is none: what diverges fails, says where, and nothing is built on it."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from metatok.experiment import Cell, Home, Ledger, Pretrain, RunRecord
from metatok.experiment.design import Context, Outcome, RunSettings
from metatok.experiment.execution import run_cells
from metatok.training import CheckpointStore, OptimConfig

from . import tiny

WILD = OptimConfig(learning_rate=1e18, min_learning_rate=1e18, grad_clip=0)


def only_run(ledger: Ledger, cell: Cell) -> RunRecord:
    (run,) = (r for r in ledger.records(cell.kind, None) if r.fingerprint == cell.fingerprint)
    return run


def test_a_diverged_cell_fails_with_step_loss_and_samples(
    ledger: Ledger, home: Home, new_cell: Callable[..., Pretrain]
) -> None:
    base = new_cell(optim=WILD, steps=12)
    tuned = tiny.finetune(base)
    assert tiny.run([base, tuned], ledger, home) == ["failed", "skipped"]
    run = only_run(ledger, base)
    assert (run.status, run.tags["diverged"]) == ("FAILED", "true")
    trace = Path(run.artifact_uri.removeprefix("file://"), "traceback.txt").read_text()
    told = re.search(r"step (\d+): the loss .* last finite loss ([\d.e+]+); the batch's samples: (.+)", trace)
    assert told
    step = int(told[1])
    assert math.isfinite(float(told[2]))
    samples = [int(sample) for sample in told[3].split(", ")]
    assert samples == list(range((step - 1) * base.batch_size, step * base.batch_size))
    assert all(math.isfinite(value) for value in run.metrics.values())  # no line after the last finite one
    assert not CheckpointStore(home.checkpoints(base.fingerprint)).steps()


def test_the_step_told_is_the_first_bad_one_whatever_the_log_interval(
    fresh_home: Home, new_cell: Callable[..., Pretrain]
) -> None:
    cell = new_cell(optim=WILD, steps=24)
    told = set()
    for log_every in (1, 2, 8):
        settings = RunSettings(micro_batch_size=4, log_every=log_every, checkpoint_every=8)
        with pytest.raises(FloatingPointError) as caught:
            cell.run(Context(fresh_home, settings))
        told.add(str(caught.value))
    assert len(told) == 1


def test_a_fine_tune_tells_its_examples(fresh_home: Home) -> None:
    base = tiny.pretrain(steps=2)
    tuned = tiny.finetune(base, optim=WILD, steps=12, batch_size=5, n_train=60)
    context = Context(fresh_home, tiny.SETTINGS)
    base.run(context)
    with pytest.raises(FloatingPointError, match="the batch's samples: ") as caught:
        tuned.run(context)
    samples = [int(sample) for sample in str(caught.value).rpartition(": ")[2].split(", ")]
    assert len(set(samples)) == 5
    assert set(samples) <= set(range(60))


def test_a_final_number_that_is_none_fails_the_cell_too(
    ledger: Ledger, home: Home, new_cell: Callable[..., Pretrain], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = new_cell(steps=2)
    monkeypatch.setattr(Pretrain, "run", lambda self, context: Outcome({"a": 1.0, "b": math.inf}))
    assert list(run_cells([cell], ledger, Context(home, tiny.SETTINGS), {}).values()) == ["failed"]
    run = only_run(ledger, cell)
    assert run.tags["error"] == "FloatingPointError: not finite: b"
    assert run.metrics == {}
    monkeypatch.undo()
    assert tiny.run([cell], ledger, home) == ["finished"]  # a repaired cell is done like any other
    assert "diverged" not in only_run(ledger, cell).tags


def test_a_run_deleted_meanwhile_ends_no_other_cell(
    ledger: Ledger, home: Home, new_cell: Callable[..., Pretrain], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = new_cell(steps=2), new_cell(steps=2)
    whole = Pretrain.run

    def run(self: Pretrain, context: Context) -> Outcome:
        if self == gone:
            ledger.client.delete_run(only_run(ledger, gone).run_id)
            raise FloatingPointError("not finite")
        return whole(self, context)

    monkeypatch.setattr(Pretrain, "run", run)
    assert tiny.run([gone, other], ledger, home) == ["failed", "finished"]
