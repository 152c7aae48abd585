"""The ledger: one run a cell, with all that it says."""

import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from mlflow.entities import Experiment
from mlflow.tracking import MlflowClient

from metatok.errors import ConfigError
from metatok.experiment import Home, Ledger, Pretrain, get_preset
from metatok.experiment.design import cell_from_json, kind_names, with_ancestors
from metatok.experiment.ledger.ledger import flat_params
from metatok.experiment.ledger.owner import owner_of_this_process

from . import tiny

NewCell = Callable[..., Pretrain]


def test_a_cell_is_done_when_its_run_is_finished(ledger: Ledger, new_cell: NewCell) -> None:
    cell, other = new_cell(), new_cell()
    run = tiny.claimed(ledger, cell)
    assert ledger.missing([other, cell]) == [other, cell]
    assert cell.fingerprint not in ledger.finished()
    run.log(2, {"loss": 3.0})
    run.log(4, {"loss": 2.0})
    run.finish({"validation_loss": 1.25, "parameters": 1000})
    assert ledger.finished()[cell.fingerprint] == run.run_id
    assert ledger.missing([other, cell]) == [other]
    assert ledger.claim(cell, tiny.TAGS) is None
    asked = ledger.runs([cell.fingerprint, other.fingerprint])
    assert {key: found.status for key, found in asked.items()} == {cell.fingerprint: "FINISHED"}
    (record,) = [r for r in ledger.records("pretrain") if r.fingerprint == cell.fingerprint]
    assert record.metrics["validation_loss"] == 1.25
    assert tiny.points(ledger, run.run_id, "loss") == [(2, 3.0), (4, 2.0)]
    assert tiny.points(ledger, run.run_id, "validation_loss") == [(cell.steps, 1.25)]
    assert record.end_time is not None
    assert record.end_time >= record.start_time


def test_a_run_says_what_it_is(ledger: Ledger, home: Home, new_cell: NewCell) -> None:
    cell = new_cell()
    tuned = tiny.finetune(cell, train_length=32)
    run = tiny.claimed(ledger, tuned)
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
    assert columns.keys() == set(kind_names()) - absent


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
    run = tiny.claimed(ledger, new_cell())
    run.finish({"validation_loss": 1.0})
    assert {k: v for k, v in os.environ.items() if k.startswith("MLFLOW_")} == before
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite_are_kept(ledger: Ledger, new_cell: NewCell) -> None:
    run = tiny.claimed(ledger, new_cell())
    run.log(1, {"loss": float("nan")})
    run.log(2, {"loss": float("inf")})
    run.finish({"validation_loss": 1.0})
    (_, first), (_, second) = tiny.points(ledger, run.run_id, "loss")
    assert first != first
    assert second > 1e300


def test_a_thousand_points_and_more_arrive(ledger: Ledger, new_cell: NewCell) -> None:
    run = tiny.claimed(ledger, new_cell())
    for step in range(1, 1201):
        run.log(step, {"loss": float(step), "grad_norm": 1.0})
    run.finish({"validation_loss": 1.0})
    assert tiny.points(ledger, run.run_id, "loss") == [(step, float(step)) for step in range(1, 1201)]


def test_a_deleted_run_stops_its_writer_instead_of_waiting_for_ever(
    ledger: Ledger, new_cell: NewCell, caplog: pytest.LogCaptureFixture
) -> None:
    run = tiny.claimed(ledger, new_cell())
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
    "uri", ["http://127.0.0.1:9", "http://", "foo://bar", "./mlruns", "postgresql://x:secret@127.0.0.1:9/db"]
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
    assert uri.replace("x:secret@", "").rstrip("/") in str(caught.value)
    assert "secret" not in str(caught.value)


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
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*does not answer") as caught:
            Ledger.open(fresh_home)
    assert "secret" not in str(caught.value)


def test_an_experiment_that_another_home_makes_at_the_same_moment_is_shared(
    ledger: Ledger, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", home.tracking_uri)
    look, looked = MlflowClient.get_experiment_by_name, set()

    def look_too_early(client: MlflowClient, name: str) -> Experiment | None:
        if name in looked:
            return look(client, name)
        looked.add(name)
        return None

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", look_too_early)
    assert Ledger.open(Home.open(tmp_path / "another")).experiments == ledger.experiments
