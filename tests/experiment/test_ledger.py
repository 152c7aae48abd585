"""The ledger: one run a cell, whatever happens to the processes that write it."""

import json
import logging
import multiprocessing as mp
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlflow.entities import Metric

from metatok.errors import ConfigError
from metatok.experiment import Home, Ledger, Pretrain, get_preset
from metatok.experiment.cells import KINDS, cell_from_json
from metatok.experiment.ledger import flat_params
from metatok.experiment.plan import with_ancestors
from metatok.experiment.run import CellRun, owner_of_this_process

from . import children, tiny

NewCell = Callable[..., Pretrain]


def claimed(ledger: Ledger, cell: Pretrain) -> CellRun:
    run = ledger.claim(cell, tiny.TAGS)
    assert run is not None
    return run


def runs_of(ledger: Ledger, cell: Pretrain) -> list[Any]:
    """All runs of the cell, straight from MLflow."""
    query = f"tags.fingerprint = '{cell.fingerprint}'"
    return list(ledger.client.search_runs(list(ledger.experiments.values()), query))


def points(ledger: Ledger, run_id: str, curve: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in ledger.client.get_metric_history(run_id, curve)]


def started(processes: ForkServerContext, target: Callable[..., None], *arguments: Any) -> Any:
    process = processes.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def test_a_cell_is_done_when_its_run_is_finished(ledger: Ledger, new_cell: NewCell) -> None:
    cell, other = new_cell(), new_cell()
    run = claimed(ledger, cell)
    assert ledger.missing([other, cell]) == [other, cell]
    assert cell.fingerprint not in ledger.finished()
    run.log(2, {"loss": 3.0})
    run.log(4, {"loss": 2.0})
    run.finish({"validation_loss": 1.25, "parameters": 1000})
    assert ledger.finished()[cell.fingerprint] == run.run_id
    assert ledger.missing([other, cell]) == [other]
    assert ledger.claim(cell, tiny.TAGS) is None
    assert ledger.statuses([cell.fingerprint, other.fingerprint]) == {cell.fingerprint: "FINISHED"}
    (record,) = [r for r in ledger.records("pretrain") if r.fingerprint == cell.fingerprint]
    assert record.metrics["validation_loss"] == 1.25
    assert points(ledger, run.run_id, "loss") == [(2, 3.0), (4, 2.0)]
    assert points(ledger, run.run_id, "validation_loss") == [(cell.steps, 1.25)]
    assert record.end_time is not None
    assert record.end_time >= record.start_time


def test_a_run_says_what_it_is(ledger: Ledger, home: Home, new_cell: NewCell) -> None:
    cell = new_cell()
    tuned = tiny.finetune(cell, train_length=32)
    run = claimed(ledger, tuned)  # type: ignore[arg-type]
    run.table("records", pa.table({"exact": [True, False]}))
    run.tag("checkpoint", "/somewhere/step-8")
    run.finish({"exact_match/64": 0.5})
    found = ledger.client.get_run(run.run_id)
    assert found.info.run_name == tuned.slug
    assert ledger.client.get_experiment(found.info.experiment_id).name == "metatok/finetune"
    assert found.data.params["optim.learning_rate"] == "0.001"
    assert found.data.params["eval_lengths"] == "[64, 96]"
    assert (found.data.params["model"], found.data.params["task"]) == ("meta_rope", "parity")
    assert found.data.params["train_length"] == "32"
    tags = found.data.tags
    assert tags["fingerprint"] == tuned.fingerprint
    assert tags["parents"] == cell.fingerprint
    assert (tags["preset"], tags["sweep"]) == ("tiny", "tests")
    assert tags["owner"] == owner_of_this_process()
    assert abs(float(tags["heartbeat"]) - time.time()) < 60
    kept = Path(home.artifacts, "finetune", run.run_id, "artifacts")
    assert sorted(path.name for path in kept.iterdir()) == ["cell.json", "records.parquet"]
    assert cell_from_json((kept / "cell.json").read_text()) == tuned
    (record,) = [r for r in ledger.records("finetune") if r.fingerprint == tuned.fingerprint]
    assert ledger.table(record, "records").to_pydict() == {"exact": [True, False]}
    assert ledger.checkpoint_uri(tuned.fingerprint) == "/somewhere/step-8"
    with pytest.raises(LookupError, match=cell.id):
        ledger.checkpoint_uri(cell.fingerprint)


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_all_runs_of_an_experiment_have_the_same_columns(preset: str) -> None:
    columns: dict[str, set[str]] = {}
    for cell in with_ancestors(get_preset(preset).cells()):
        params = flat_params(cell)
        assert columns.setdefault(cell.kind, set(params)) == set(params)
        assert set(cell.labels) <= set(params)
        assert all(isinstance(value, str) and len(value) <= 6000 for value in params.values())
        assert len(params) <= 100
    absent = {"candidate"} | ({"published"} if preset == "smoke" else set())  # searches, published models
    assert columns.keys() == {kind.model_fields["kind"].default for kind in KINDS} - absent


def test_a_failed_run_is_opened_again(ledger: Ledger, new_cell: NewCell) -> None:
    cell = new_cell()
    first = claimed(ledger, cell)
    first.log(2, {"loss": 3.0})
    first.fail("Traceback (most recent call last):\n  ...\nValueError: too bad\n")
    (found,) = runs_of(ledger, cell)
    assert (found.info.status, found.data.tags["error"]) == ("FAILED", "ValueError: too bad")
    assert ledger.errors([cell.fingerprint]) == {cell.fingerprint: "ValueError: too bad"}
    trace = Path(ledger.client.download_artifacts(first.run_id, "traceback.txt")).read_text()
    assert trace.endswith("ValueError: too bad\n")
    assert ledger.missing([cell]) == [cell]
    second = claimed(ledger, cell)
    assert second.run_id == first.run_id
    (found,) = runs_of(ledger, cell)
    assert found.info.status == "RUNNING"
    second.log(4, {"loss": 2.0})
    second.finish({"validation_loss": 1.0})
    (found,) = runs_of(ledger, cell)
    assert found.info.status == "FINISHED"
    assert "error" not in found.data.tags
    assert points(ledger, first.run_id, "loss") == [(2, 3.0), (4, 2.0)]


def test_a_run_that_was_let_go_is_there_for_others_at_once(ledger: Ledger, new_cell: NewCell) -> None:
    cell = new_cell()
    first = claimed(ledger, cell)
    first.log(2, {"loss": 3.0})
    first.release()
    (found,) = runs_of(ledger, cell)
    assert found.info.status == "KILLED"
    assert points(ledger, first.run_id, "loss") == [(2, 3.0)]
    assert claimed(ledger, cell).run_id == first.run_id


def test_a_killed_owners_run_is_taken_over_with_no_point_twice_and_none_missing(
    ledger: Ledger, new_cell: NewCell, processes: ForkServerContext
) -> None:
    cell = new_cell()
    # Checkpoint after step 4: what was logged later is lost with the process.
    started(processes, children.claim_and_die, ledger, cell, 7, 4).join(60)
    (left,) = runs_of(ledger, cell)
    assert left.info.status == "RUNNING"
    before = time.monotonic()
    run = claimed(ledger, cell)
    assert time.monotonic() - before < 10
    assert run.run_id == left.info.run_id
    for step in range(3, 11):  # resumed from an older checkpoint even
        run.log(step, {"loss": 1 / step, "learning_rate": float(step)})
    run.finish({"validation_loss": 1.0})
    assert points(ledger, run.run_id, "loss") == [(step, 1 / step) for step in range(1, 11)]
    assert points(ledger, run.run_id, "learning_rate") == [(step, float(step)) for step in range(1, 11)]
    assert len(runs_of(ledger, cell)) == 1


def test_points_that_a_dead_process_could_not_send_are_sent_by_the_next(
    ledger: Ledger, home: Home, new_cell: NewCell
) -> None:
    cell = new_cell()
    first = claimed(ledger, cell)
    first.log(2, {"loss": 2.0})
    first.flush()
    first._spool_all([Metric("loss", 4.0, int(1000 * time.time()), 4)])  # the store was away at step 4
    second = claimed(ledger, cell)
    for step in (4, 6):
        second.log(step, {"loss": float(step)})
    second.finish({"validation_loss": 1.0})
    assert points(ledger, second.run_id, "loss") == [(2, 2.0), (4, 4.0), (6, 6.0)]
    assert not list(home.spool.glob(f"{second.run_id}*"))


def test_what_a_killed_process_had_sent_in_part_is_completed_and_not_doubled(
    ledger: Ledger, new_cell: NewCell
) -> None:
    cell = new_cell()
    first = claimed(ledger, cell)
    first.log(2, {"loss": 2.0, "grad_norm": 1.0})
    first.log(4, {"loss": 4.0})  # killed between two batches: grad_norm was to come
    first.log(cell.steps, {"validation_loss": 1.0})  # or after the final numbers, before FINISHED
    first.flush()
    second = claimed(ledger, cell)
    for step in (2, 4):
        second.log(step, {"loss": float(step), "grad_norm": 1.0})
    second.finish({"validation_loss": 1.0})
    assert points(ledger, second.run_id, "loss") == [(2, 2.0), (4, 4.0)]
    assert points(ledger, second.run_id, "grad_norm") == [(2, 1.0), (4, 1.0)]
    assert points(ledger, second.run_id, "validation_loss") == [(cell.steps, 1.0)]


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
def test_who_counts_as_alive(owner: str, age: int, alive: bool, ledger: Ledger, new_cell: NewCell) -> None:
    cell = new_cell()
    run = claimed(ledger, cell)
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
    run = claimed(ledger, cell)
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
    look = ledger._by_fingerprint

    def look_and_blink(fingerprint: str) -> Any:
        found = look(fingerprint)
        finish.set()
        child.join(60)
        return found

    monkeypatch.setattr(ledger, "_by_fingerprint", look_and_blink)
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
    assert points(ledger, run.info.run_id, "loss") == [(1, 1.0)]


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
    assert len(answers[0]) == len(KINDS)


def test_a_deleted_experiment_is_told_with_the_ways_out(fresh_home: Home) -> None:
    ledger = Ledger.open(fresh_home)
    number = ledger.experiments["pretrain"]
    ledger.client.delete_experiment(number)
    ways_out = f"{ledger.tracking_uri} mlflow experiments restore -x {number}.*mlflow gc"
    with pytest.raises(ConfigError, match=f"metatok/pretrain is deleted.*{ways_out}"):
        Ledger.open(fresh_home)
    ledger.client.restore_experiment(number)
    assert Ledger.open(fresh_home).experiments == ledger.experiments


def test_a_ledger_travels_to_other_processes(ledger: Ledger) -> None:
    copy = pickle.loads(pickle.dumps(ledger))
    assert copy.experiments == ledger.experiments
    assert copy.finished() == ledger.finished()


def test_the_working_directory_and_environment_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: Ledger, new_cell: NewCell
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {k: v for k, v in os.environ.items() if k.startswith("MLFLOW_")}
    run = claimed(ledger, new_cell())
    run.finish({"validation_loss": 1.0})
    assert {k: v for k, v in os.environ.items() if k.startswith("MLFLOW_")} == before
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite_are_kept(ledger: Ledger, new_cell: NewCell) -> None:
    run = claimed(ledger, new_cell())
    run.log(1, {"loss": float("nan")})
    run.log(2, {"loss": float("inf")})
    run.finish({"validation_loss": 1.0})
    (_, first), (_, second) = points(ledger, run.run_id, "loss")
    assert first != first
    assert second > 1e300


def test_a_thousand_points_and_more_arrive(ledger: Ledger, new_cell: NewCell) -> None:
    run = claimed(ledger, new_cell())
    for step in range(1, 1201):
        run.log(step, {"loss": float(step), "grad_norm": 1.0})
    run.finish({"validation_loss": 1.0})
    assert points(ledger, run.run_id, "loss") == [(step, float(step)) for step in range(1, 1201)]


def test_a_deleted_run_stops_its_writer_instead_of_waiting_for_ever(
    ledger: Ledger, new_cell: NewCell, caplog: pytest.LogCaptureFixture
) -> None:
    run = claimed(ledger, new_cell())
    ledger.client.delete_run(run.run_id)
    run.log(1, {"loss": 1.0})
    with pytest.raises(Exception, match="active"):
        run.flush()
    run.fail("ValueError: x")
    assert "cannot be marked as FAILED" in caplog.text


def test_sweeps_are_remembered_in_order(ledger: Ledger) -> None:
    first, second = (json.dumps({"name": name}) for name in ("a", "b"))
    for preset in (first, second, first):
        ledger.record_sweep(preset)
    assert ledger.sweeps()[-2:] == [second, first]


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "http://", "foo://bar", "./mlruns", "postgresql://x@127.0.0.1:9/db"]
)
def test_a_store_that_does_not_answer_is_a_mistake_told_at_once(
    uri: str, fresh_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI=.*does not answer.*unset it") as caught:
        Ledger.open(fresh_home)
    assert time.monotonic() - start < 5
    assert "\n" not in str(caught.value)
    assert uri.rstrip("/") in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"-ERR unknown command\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n<html",
    ],
)
def test_a_server_of_another_kind_is_a_mistake(
    answer: bytes, fresh_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*does not answer"):
            Ledger.open(fresh_home)
