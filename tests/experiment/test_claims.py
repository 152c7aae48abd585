"""Claims: of all processes that want a cell one runs it, and what it leaves when it dies is taken over."""

import logging
import multiprocessing as mp
import os
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Metric

from metatok.experiment import Home, Ledger, Pretrain
from metatok.experiment.design import all_kinds
from metatok.experiment.ledger.ledger import flat_params
from metatok.experiment.ledger.run import CellRun

from . import children, tiny

NewCell = Callable[..., Pretrain]


def runs_of(ledger: Ledger, cell: Pretrain) -> list[Any]:
    """All runs of the cell, straight from MLflow."""
    query = f"tags.fingerprint = '{cell.fingerprint}'"
    return list(ledger.client.search_runs(list(ledger.experiments.values()), query))


def started(processes: ForkServerContext, target: Callable[..., None], *arguments: Any) -> Any:
    process = processes.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def test_a_failed_run_is_opened_again(ledger: Ledger, new_cell: NewCell) -> None:
    cell = new_cell()
    first = tiny.claimed(ledger, cell)
    first.log(2, {"loss": 3.0})
    first.fail("Traceback (most recent call last):\n  ...\nValueError: too bad\n")
    (found,) = runs_of(ledger, cell)
    assert (found.info.status, found.data.tags["error"]) == ("FAILED", "ValueError: too bad")
    assert ledger.runs([cell.fingerprint])[cell.fingerprint].tags["error"] == "ValueError: too bad"
    trace = Path(ledger.client.download_artifacts(first.run_id, "traceback.txt")).read_text()
    assert trace.endswith("ValueError: too bad\n")
    assert ledger.missing([cell]) == [cell]
    second = tiny.claimed(ledger, cell)
    assert second.run_id == first.run_id
    (found,) = runs_of(ledger, cell)
    assert found.info.status == "RUNNING"
    second.log(4, {"loss": 2.0})
    second.finish({"validation_loss": 1.0})
    (found,) = runs_of(ledger, cell)
    assert found.info.status == "FINISHED"
    assert "error" not in found.data.tags
    assert tiny.points(ledger, first.run_id, "loss") == [(2, 3.0), (4, 2.0)]


def test_a_run_that_was_let_go_is_there_for_others_at_once(ledger: Ledger, new_cell: NewCell) -> None:
    cell = new_cell()
    first = tiny.claimed(ledger, cell)
    first.log(2, {"loss": 3.0})
    first.release()
    (found,) = runs_of(ledger, cell)
    assert found.info.status == "KILLED"
    assert tiny.points(ledger, first.run_id, "loss") == [(2, 3.0)]
    assert tiny.claimed(ledger, cell).run_id == first.run_id


def test_a_killed_owners_run_is_taken_over_with_no_point_twice_and_none_missing(
    ledger: Ledger, new_cell: NewCell, processes: ForkServerContext
) -> None:
    cell = new_cell()
    # Checkpoint after step 4: what was logged later is lost with the process.
    started(processes, children.claim_and_die, ledger, cell, 7, 4).join(60)
    (left,) = runs_of(ledger, cell)
    assert left.info.status == "RUNNING"
    before = time.monotonic()
    run = tiny.claimed(ledger, cell)
    assert time.monotonic() - before < 10
    assert run.run_id == left.info.run_id
    for step in range(3, 11):  # resumed from an older checkpoint even
        run.log(step, {"loss": 1 / step, "learning_rate": float(step)})
    run.finish({"validation_loss": 1.0})
    assert tiny.points(ledger, run.run_id, "loss") == [(step, 1 / step) for step in range(1, 11)]
    assert tiny.points(ledger, run.run_id, "learning_rate") == [(step, float(step)) for step in range(1, 11)]
    assert len(runs_of(ledger, cell)) == 1


def test_points_that_a_dead_process_could_not_send_are_sent_by_the_next(
    ledger: Ledger, home: Home, new_cell: NewCell
) -> None:
    cell = new_cell()
    first = tiny.claimed(ledger, cell)
    first.log(2, {"loss": 2.0})
    first.flush()
    first._spool_all([Metric("loss", 4.0, int(1000 * time.time()), 4)])  # the store was away at step 4
    second = tiny.claimed(ledger, cell)
    for step in (4, 6):
        second.log(step, {"loss": float(step)})
    second.finish({"validation_loss": 1.0})
    assert tiny.points(ledger, second.run_id, "loss") == [(2, 2.0), (4, 4.0), (6, 6.0)]
    assert not list(home.spool.glob(f"{second.run_id}*"))


def test_what_a_killed_process_had_sent_in_part_is_completed_and_not_doubled(
    ledger: Ledger, new_cell: NewCell
) -> None:
    cell = new_cell()
    first = tiny.claimed(ledger, cell)
    first.log(2, {"loss": 2.0, "grad_norm": 1.0})
    first.log(4, {"loss": 4.0})  # killed between two batches: grad_norm was to come
    first.log(cell.steps, {"validation_loss": 1.0})  # or after the final numbers, before FINISHED
    first.flush()
    second = tiny.claimed(ledger, cell)
    for step in (2, 4):
        second.log(step, {"loss": float(step), "grad_norm": 1.0})
    second.finish({"validation_loss": 1.0})
    assert tiny.points(ledger, second.run_id, "loss") == [(2, 2.0), (4, 4.0)]
    assert tiny.points(ledger, second.run_id, "grad_norm") == [(2, 1.0), (4, 1.0)]
    assert tiny.points(ledger, second.run_id, "validation_loss") == [(cell.steps, 1.0)]


def test_a_living_owner_is_waited_for(
    ledger: Ledger,
    new_cell: NewCell,
    processes: ForkServerContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cell = new_cell()
    holds, finish = processes.Event(), processes.Event()
    child = started(processes, children.claim_and_hold, ledger, cell, holds, finish)
    assert holds.wait(60)
    answers: list[CellRun | None] = []

    def wait_for_it() -> None:
        answers.append(ledger.claim(cell, tiny.TAGS, poll_seconds=0.1))

    with caplog.at_level(logging.WARNING):
        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        deadline = time.monotonic() + 60
        while "waiting" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        waiter.join(0.5)  # several looks later
        assert waiter.is_alive()
        assert answers == []
        finish.set()
        waiter.join(60)
    assert answers == [None]
    assert caplog.text.count(f"is being run by {socket.gethostname()}:{child.pid}") == 1
    child.join(60)
    assert len(runs_of(ledger, cell)) == 1


@pytest.mark.parametrize(
    ("owner", "age", "alive"),
    [
        ("elsewhere:1:1", 5, True),
        ("elsewhere:1:1", 300, False),
        (f"{socket.gethostname()}:{2**22 + 1}:1", 5, False),  # no such process
        (f"{socket.gethostname()}:{os.getppid()}:1", 5, False),  # the number was given to another
        ("", 5, False),
    ],
)
def test_who_counts_as_alive(
    owner: str, age: int, alive: bool, ledger: Ledger, new_cell: NewCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatok.experiment.ledger.owner.WATCH_SECONDS", 0.5)
    cell = new_cell()
    run = tiny.claimed(ledger, cell)
    run._stop.set()
    ledger.client.set_tag(run.run_id, "owner", owner)
    ledger.client.set_tag(run.run_id, "heartbeat", str(time.time() - age))
    answers: list[CellRun | None] = []
    waiter = threading.Thread(target=lambda: answers.append(ledger.claim(cell, tiny.TAGS, 0.1)), daemon=True)
    waiter.start()
    waiter.join(1.0 if alive else 20)
    assert waiter.is_alive() == alive
    if alive:
        ledger.client.set_terminated(run.run_id, "FINISHED")
        waiter.join(20)
        assert answers == [None]
    else:
        assert answers[0] is not None
        assert answers[0].run_id == run.run_id


def test_a_run_whose_maker_died_at_once_gets_its_description(ledger: Ledger, new_cell: NewCell) -> None:
    cell = new_cell()
    tags = {"fingerprint": cell.fingerprint, "owner": f"{socket.gethostname()}:{2**22 + 1}:1"}
    made = ledger.client.create_run(ledger.experiments["pretrain"], tags=tags)
    run = tiny.claimed(ledger, cell)
    assert run.run_id == made.info.run_id
    found = ledger.client.get_run(run.run_id)
    assert found.data.params == flat_params(cell)
    assert [file.path for file in ledger.client.list_artifacts(run.run_id)] == ["cell.json"]


def test_an_owner_that_finishes_and_ends_while_it_is_looked_at_is_not_taken_over(
    ledger: Ledger, new_cell: NewCell, processes: ForkServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = new_cell()
    holds, finish = processes.Event(), processes.Event()
    child = started(processes, children.claim_and_hold, ledger, cell, holds, finish)
    assert holds.wait(60)
    look = ledger._runs_of

    def look_and_blink(fingerprint: str) -> Any:
        found = look(fingerprint)
        finish.set()
        child.join(60)
        return found

    monkeypatch.setattr(ledger, "_runs_of", look_and_blink)
    assert ledger.claim(cell, tiny.TAGS) is None


@pytest.mark.parametrize("left_behind", [False, True])
def test_of_many_that_claim_at_once_exactly_one_runs(
    left_behind: bool, ledger: Ledger, new_cell: NewCell, processes: ForkServerContext
) -> None:
    cell = new_cell()
    if left_behind:
        started(processes, children.claim_and_die, ledger, cell).join(60)
    n = 4 if left_behind else 8
    start = processes.Barrier(n)
    ends = [mp.Pipe(duplex=False) for _ in range(n)]
    racers = [started(processes, children.claim_in_a_race, ledger, cell, start, send) for _, send in ends]
    won: list[bool] = [receive.recv() for receive, _ in ends if receive.poll(60)]
    for racer in racers:
        racer.join(60)
    assert sorted(won) == [False] * (n - 1) + [True]
    (run,) = runs_of(ledger, cell)
    assert run.info.status == "FINISHED"
    assert tiny.points(ledger, run.info.run_id, "loss") == [(1, 1.0)]


def test_eight_processes_may_open_a_fresh_home_at_once(
    fresh_home: Home, processes: ForkServerContext
) -> None:
    start = processes.Barrier(8)
    ends = [mp.Pipe(duplex=False) for _ in range(8)]
    openers = [started(processes, children.open_ledger, fresh_home, start, send) for _, send in ends]
    answers = [receive.recv() if receive.poll(60) else None for receive, _ in ends]
    for opener in openers:
        opener.join(60)
    assert answers[0] is not None
    assert answers == [answers[0]] * 8
    assert len(answers[0]) == len(all_kinds())
