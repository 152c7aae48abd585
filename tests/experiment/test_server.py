"""A tracking server that goes away and comes back, fails, is late, or says nothing."""

import http.client
import http.server
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
from metatok.experiment.execution import Progress
from metatok.experiment.ledger.run import CellRun

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
        deadline = time.monotonic() + 120
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Proxy(http.server.ThreadingHTTPServer):
    """Stands before a server. mode: "pass", "error" (500), "late" (answers after a time-out), "silent"."""

    TIMEOUT = 1.0  # of the client, in seconds

    def __init__(self, port: int) -> None:
        self.port, self.mode = port, "pass"
        super().__init__(("127.0.0.1", 0), _Forward)
        self.uri = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A client that did not wait for its answer is no news."""


class _Forward(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        mode = self.server.mode
        while mode == "silent" and self.server.mode == "silent":
            time.sleep(0.1)
        if mode == "error":
            self.send_error(500)
        if mode in ("error", "silent"):
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        if mode == "late":
            time.sleep(2 * self.server.TIMEOUT)
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy
        proxy.mode = "pass"
        proxy.shutdown()


@pytest.mark.parametrize("mode", ["error", "late", "silent"])
def test_training_goes_on_whatever_the_server_does(
    mode: str,
    proxy: Proxy,
    fresh_home: Home,
    new_cell: Callable[..., Pretrain],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{proxy.TIMEOUT:.0f}")
    monkeypatch.setattr("metatok.experiment.ledger.run.FLUSH_SECONDS", 0.0)
    ledger, cell = Ledger.open(fresh_home), new_cell(steps=40)
    moments: dict[int, float] = {}

    def disturb(progress: Progress) -> None:
        moments[progress.step] = time.monotonic()
        if progress.step == 4:
            proxy.mode = mode
        elif progress.step == cell.steps and proxy.mode == mode:
            proxy.mode = "pass"

    assert tiny.run([cell], ledger, fresh_home, disturb) == ["finished"]
    assert "the ledger is away" in caplog.text
    # One attempt to send, with its retry, and no more of them at each of the 18 log lines and 9 checkpoints.
    assert moments[cell.steps] - moments[4] < 15
    (record,) = [r for r in ledger.records("pretrain", None) if r.fingerprint == cell.fingerprint]
    assert record.status == "FINISHED"
    for curve in ("loss", "grad_norm"):
        history = ledger.client.get_metric_history(record.run_id, curve)
        assert [point.step for point in history] == list(range(2, cell.steps + 1, 2))
    assert len(ledger.client.get_metric_history(record.run_id, "validation_loss")) == 1
    assert not list(fresh_home.spool.glob("*.jsonl"))


def test_nothing_is_lost_while_the_server_is_away(
    server: Server,
    fresh_home: Home,
    new_cell: Callable[..., Pretrain],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setattr("metatok.experiment.ledger.run.FLUSH_SECONDS", 0.5)
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
    assert ledger.finished()[cell.fingerprint] == run.run_id
    history = ledger.client.get_metric_history(run.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, float(step)) for step in range(1, 6)]
    (record,) = [r for r in ledger.records("pretrain") if r.fingerprint == cell.fingerprint]
    assert record.metrics["validation_loss"] == 0.5
    assert record.tags["checkpoint"] == "/there"
    assert ledger.table(record, "records").to_pydict() == {"exact": [True]}
    assert not list(fresh_home.spool.glob("*.jsonl"))
    assert claims[0] is not None
    assert claims[0].run_id != run.run_id
    claims[0].release()  # ends its heartbeat
