"""A tracking server that goes away and comes back."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from metatok.experiment import Home, Ledger, Pretrain
from metatok.experiment.run import CellRun

from . import tiny


class Server:
    """`mlflow server` on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/server.db", "--workers", "1"]
        command += ["--artifacts-destination", f"{self.folder}/artifacts"]
        with (self.folder / "server.log").open("ab") as log:
            environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # starts faster
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


def test_nothing_is_lost_while_the_server_is_away(
    server: Server,
    fresh_home: Home,
    new_cell: Callable[..., Pretrain],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setattr("metatok.experiment.run.FLUSH_SECONDS", 0.5)
    ledger, cell, later = Ledger.open(fresh_home), new_cell(), new_cell()
    run = ledger.claim(cell, tiny.TAGS)
    assert run is not None
    run.log(1, {"loss": 1.0})
    run.flush()

    server.kill()
    for step in (2, 3, 4):
        start = time.monotonic()
        run.log(step, {"loss": float(step)})
        run.flush()  # as before a checkpoint
        assert time.monotonic() - start < 10
    assert "the ledger is away" in caplog.text
    assert len(list(fresh_home.spool.glob("*.jsonl"))) == 1
    # Finishing and claiming wait for the server.
    claims: list[CellRun | None] = []

    def finish() -> None:
        run.log(5, {"loss": 5.0})
        run.table("records", pa.table({"exact": [True]}))
        run.tag("checkpoint", "/there")
        run.finish({"validation_loss": 0.5})

    finishing = threading.Thread(target=finish)
    claiming = threading.Thread(target=lambda: claims.append(ledger.claim(later, tiny.TAGS)))
    finishing.start()
    claiming.start()
    time.sleep(1)
    assert finishing.is_alive()
    assert claiming.is_alive()

    server.start()
    finishing.join(60)
    claiming.join(60)
    assert ledger.finished() == {cell.fingerprint: run.run_id}
    history = ledger.client.get_metric_history(run.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, float(step)) for step in range(1, 6)]
    (record,) = ledger.records("pretrain")
    assert record.metrics["validation_loss"] == 0.5
    assert record.tags["checkpoint"] == "/there"
    assert ledger.table(record, "records").to_pydict() == {"exact": [True]}
    assert not list(fresh_home.spool.glob("*.jsonl"))
    assert claims[0] is not None
    assert claims[0].run_id != run.run_id
