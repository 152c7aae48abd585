"""One cell's run in the ledger, while it is being written."""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from metatok.experiment.cells import Cell

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
FLUSH_SECONDS = 5.0
BATCH = 1000  # metrics that one log_batch takes


def owner_of_this_process() -> str:
    """host:pid:start time, which no other process ever has."""
    process = psutil.Process()
    return f"{socket.gethostname()}:{process.pid}:{process.create_time():.0f}"


def owner_is_alive(tags: Mapping[str, str]) -> bool:
    """Whether another process still works on the run with these tags."""
    owner = tags.get("owner", "")
    if owner == owner_of_this_process():
        return False  # left by an earlier attempt in this very process
    if time.time() - float(tags.get("heartbeat", 0)) > STALE_SECONDS:
        return False
    host, pid, created = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return True
    try:
        return f"{psutil.Process(int(pid)).create_time():.0f}" == created
    except (psutil.NoSuchProcess, ValueError):
        return False


class CellRun:
    """Writes one run: buffered metrics, artifacts, a heartbeat, and the end.

    A store that is away does not stop the work: lines wait in a spool file and are sent with the next flush.
    Steps that the run has already are not written twice, so a resumed curve has no doubles.
    """

    def __init__(self, client: MlflowClient, run_id: str, cell: Cell, spool: Path, tags: dict[str, str]):
        self.run_id, self.cell = run_id, cell
        self._client = client
        self._spool = spool / f"{run_id}.jsonl"
        self._lock = threading.Lock()
        self._buffer: list[Metric] = []
        self._flushed = time.monotonic()
        self._logged_to = self._last_step()
        self._set_tags({**tags, "owner": owner_of_this_process(), "heartbeat": f"{time.time():.0f}"})
        client.update_run(run_id, status="RUNNING")
        self._stop = threading.Event()
        threading.Thread(target=self._beat, name=f"heartbeat-{run_id[:8]}", daemon=True).start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each of the named curves."""
        if step <= self._logged_to:
            return
        now = int(time.time() * 1000)
        with self._lock:
            self._buffer += [Metric(name, float(value), now, step) for name, value in metrics.items()]
        if time.monotonic() - self._flushed > FLUSH_SECONDS or len(self._buffer) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what waits: the spool first, then the buffer; what cannot be sent goes to the spool."""
        with self._lock:
            pending, self._buffer = self._spooled() + self._buffer, []
            self._flushed = time.monotonic()
            try:
                for start in range(0, len(pending), BATCH):
                    self._client.log_batch(self.run_id, metrics=pending[start : start + BATCH])
            except (MlflowException, OSError) as error:
                logger.warning(
                    "the ledger is away (%s); %d points wait in %s", error, len(pending), self._spool
                )
                lines = (json.dumps([m.key, m.value, m.timestamp, m.step]) for m in pending)
                self._spool.write_text("".join(f"{line}\n" for line in lines))
            else:
                self._spool.unlink(missing_ok=True)

    def tag(self, name: str, value: str) -> None:
        self._client.set_tag(self.run_id, name, value)

    def table(self, name: str, table: pa.Table) -> None:
        """Keep a table as the artifact `name`.parquet."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.parquet"
            pq.write_table(table, path)
            self._client.log_artifact(self.run_id, str(path))

    def finish(self, metrics: Mapping[str, float]) -> None:
        """Write the final numbers and close the run as FINISHED."""
        self._logged_to = -1
        self.log(self._final_step(), metrics)
        self._close("FINISHED")

    def fail(self, trace: str) -> None:
        """Close the run as FAILED, with the traceback as artifact and its last line as a tag."""
        self._client.log_text(self.run_id, trace, "traceback.txt")
        self.tag("error", trace.strip().splitlines()[-1][:500])
        self._close("FAILED")

    def _close(self, status: str) -> None:
        self._stop.set()
        self.flush()
        while self._spool.exists():  # a run must not say FINISHED before its points are in
            time.sleep(FLUSH_SECONDS)
            self.flush()
        self._client.set_terminated(self.run_id, status)

    def _final_step(self) -> int:
        return getattr(self.cell, "steps", 0)

    def _spooled(self) -> list[Metric]:
        if not self._spool.exists():
            return []
        return [Metric(*json.loads(line)) for line in self._spool.read_text().splitlines()]

    def _last_step(self) -> int:
        """The last step the run has a loss for, sent or spooled; -1 if none."""
        history = self._client.get_metric_history(self.run_id, "loss")
        return max((m.step for m in [*history, *self._spooled()]), default=-1)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        self._client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                self.tag("heartbeat", f"{time.time():.0f}")
            except (MlflowException, OSError) as error:
                logger.warning("heartbeat of run %s not written: %s", self.run_id, error)


def process_tags() -> dict[str, str]:
    """Where this process runs: host and GPU."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"host": socket.gethostname(), "gpu": gpu, "cpus": str(os.cpu_count())}
