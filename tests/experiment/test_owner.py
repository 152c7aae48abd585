"""A run has one owner: who is taken for dead wrongly, or comes late, does no harm."""

import multiprocessing as mp
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from metatok.experiment import Home, Ledger, Pretrain
from metatok.experiment.execution import Progress
from metatok.experiment.ledger.run import CellRun, ClaimLost

from . import children, tiny

NewCell = Callable[..., Pretrain]
ELSEWHERE = "elsewhere:1:1"
DEAD = f"{socket.gethostname()}:{2**22 + 1}:1"


def set_tags(ledger: Ledger, run_id: str, **tags: str) -> None:
    for name, value in tags.items():
        ledger.client.set_tag(run_id, name, value)


def waiting(ledger: Ledger, cell: Pretrain) -> tuple[threading.Thread, list[CellRun | None]]:
    """A thread that claims the cell, and where its answer comes."""
    answers: list[CellRun | None] = []
    thread = threading.Thread(target=lambda: answers.append(ledger.claim(cell, tiny.TAGS, 0.1)), daemon=True)
    thread.start()
    return thread, answers


def taken_over(ledger: Ledger, cell: Pretrain, processes: ForkServerContext, step: int) -> Callable[[], None]:
    """Another process takes the cell's run for abandoned and gets to `step`; what is returned ends it."""
    (run,) = ledger.runs([cell.fingerprint]).values()
    set_tags(ledger, run.run_id, owner=DEAD)
    holds, finish = processes.Event(), processes.Event()
    arguments = (ledger, cell, holds, finish, step)
    other: Any = processes.Process(target=children.claim_and_hold, args=arguments, daemon=True)
    other.start()
    assert holds.wait(60)

    def end() -> None:
        finish.set()
        other.join(60)

    return end


def test_an_owner_that_beats_again_is_left_alone(
    ledger: Ledger, new_cell: NewCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatok.experiment.ledger.owner.WATCH_SECONDS", 2.0)
    cell = new_cell()
    run = tiny.claimed(ledger, cell)
    run._stop.set()
    set_tags(ledger, run.run_id, owner=ELSEWHERE, heartbeat="0")  # as of a machine that slept
    waiter, answers = waiting(ledger, cell)
    time.sleep(0.5)
    set_tags(ledger, run.run_id, heartbeat=str(time.time()))
    waiter.join(3)
    assert waiter.is_alive()
    ledger.client.set_terminated(run.run_id, "FINISHED")
    waiter.join(20)
    assert answers == [None]


def test_who_lost_a_run_writes_to_it_no_more(
    ledger: Ledger, new_cell: NewCell, processes: ForkServerContext
) -> None:
    cell = new_cell()
    run = tiny.claimed(ledger, cell)
    run.log(2, {"loss": 2.0})
    run.flush()
    run._stop.set()
    run._confirmed = 0.0  # no heartbeat came through of late
    end = taken_over(ledger, cell, processes, step=6)

    def write() -> None:
        run.log(4, {"loss": 4.0})
        run.flush()

    with pytest.raises(ClaimLost):
        write()
    run.fail("Traceback\nValueError: of one who lost it")
    run.release()
    end()
    (found,) = ledger.runs([cell.fingerprint]).values()
    assert found.status == "FINISHED"
    assert "error" not in found.tags
    assert tiny.points(ledger, run.run_id, "loss") == [(2, 2.0), (6, 0.5)]


def test_a_cell_that_is_lost_in_the_middle_is_left_to_its_new_owner(
    ledger: Ledger,
    home: Home,
    new_cell: NewCell,
    processes: ForkServerContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("metatok.experiment.ledger.run.HEARTBEAT_SECONDS", 0.2)
    cell = new_cell()

    def lose(progress: Progress) -> None:
        if progress.step == 4:
            end = taken_over(ledger, cell, processes, step=6)
            time.sleep(1)  # several heartbeats
            threading.Timer(2, end).start()

    assert tiny.run([cell], ledger, home, lose) == ["already_finished"]
    assert "was taken over by another process" in caplog.text
    (found,) = ledger.runs([cell.fingerprint]).values()
    assert tiny.points(ledger, found.run_id, "loss") == [(6, 0.5)]  # sent at checkpoints, the first at step 4


def test_a_run_that_appears_late_is_waited_out_and_leaves_nothing(
    ledger: Ledger, new_cell: NewCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metatok.experiment.ledger.owner.WATCH_SECONDS", 0.5)
    cell = new_cell()
    first = tiny.claimed(ledger, cell)
    first.release()
    # Made for a process that had asked for it, and heard nothing, while the server was slow.
    tags = {"fingerprint": cell.fingerprint, "owner": ELSEWHERE, "heartbeat": str(time.time())}
    late = ledger.client.create_run(ledger.experiments[cell.kind], tags=tags).info.run_id
    waiter, answers = waiting(ledger, cell)
    waiter.join(2)
    assert waiter.is_alive()  # whoever made it may be at work on it
    set_tags(ledger, late, heartbeat="0")
    waiter.join(20)
    (run,) = answers
    assert run is not None
    assert run.run_id == first.run_id
    run.finish({"validation_loss": 1.0})
    found = ledger.client.search_runs(
        [ledger.experiments[cell.kind]], f"tags.fingerprint = '{cell.fingerprint}'"
    )
    assert [(r.info.run_id, r.info.status) for r in found] == [(first.run_id, "FINISHED")]


def test_a_run_that_nobody_worked_on_is_not_taken_for_one_that_somebody_did(
    ledger: Ledger, new_cell: NewCell
) -> None:
    cell = new_cell()
    # Asked for first, and made all the same when its process had given up and asked again.
    tags = {"fingerprint": cell.fingerprint, "owner": DEAD}
    run = tiny.claimed(ledger, cell)
    run.release()
    early = int(1000 * time.time()) - 60_000
    late = ledger.client.create_run(ledger.experiments[cell.kind], start_time=early, tags=tags)
    again = tiny.claimed(ledger, cell)
    assert again.run_id == run.run_id != late.info.run_id
    assert not again.is_new  # or its checkpoints would be set aside
    again.release()


def test_ranks_wait_as_long_as_the_first_of_them_does(
    ledger: Ledger, home: Home, new_cell: NewCell, processes: ForkServerContext, tmp_path: Path
) -> None:
    cell, patience = (
        new_cell(),
        5.0,
    )  # how long a rank waits for word of another; half an hour where it counts
    run = tiny.claimed(ledger, cell)
    ends = [mp.Pipe(duplex=False) for _ in range(2)]
    for rank, (_, send) in enumerate(ends):
        arguments = (rank, tmp_path, ledger, home, [cell], send, patience)
        ranks: Any = processes.Process(target=children.run_as_rank, args=arguments, daemon=True)
        ranks.start()
    time.sleep(2 * patience)
    run.finish({"validation_loss": 1.0})
    answers = [receive.recv() if receive.poll(90) else None for receive, _ in ends]
    assert answers == [(["already_finished"], [("already_finished", 0)], "")] * 2
