"""One cell's run in the ledger, while it is being written."""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import requests
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from metatok.errors import first_line
from metatok.experiment.design import Cell
from metatok.experiment.ledger.owner import HEARTBEAT_SECONDS, STALE_SECONDS, owner_of_this_process

logger = logging.getLogger(__name__)

T = TypeVar("T")
FLUSH_SECONDS = 5.0
# A store that does not answer costs a flush its time-outs: it is asked again after so many times that.
PATIENCE = 10.0
# The tag of a run that ran out of GPU memory and has half the micro-batch from then on. Its latest attempt
# did: "once", or at half "twice"; an attempt before that did: "earlier".
OUT_OF_MEMORY = "out_of_memory"
# The tag of a run that failed because a number in it was not finite, which trying again would not change.
DIVERGED = "diverged"
BATCH = 1000  # metrics that one log_batch takes
# What MLflow answers while it cannot be reached, as opposed to its refusing what was asked.
AWAY = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "SERVICE_UNDER_MAINTENANCE")


def is_away(error: Exception) -> bool:
    """Whether a call to the store failed because it cannot be reached for now."""
    if isinstance(error, MlflowException):
        return error.error_code in AWAY
    if isinstance(error, requests.HTTPError):
        return error.response is None or error.response.status_code >= 500
    return isinstance(error, ConnectionError | TimeoutError | requests.ConnectionError | requests.Timeout)


def once_it_is_back(call: Callable[[], T]) -> T:
    """The call's result; as long as the store is away, it is tried again."""
    while True:
        try:
            return call()
        except Exception as error:
            if not is_away(error):
                raise
            logger.warning("the ledger is away (%s); waiting for it", first_line(error))
            time.sleep(FLUSH_SECONDS)


class ClaimLost(RuntimeError):
    """Another process has taken the run over: whoever wrote to it stops."""


class CellRun:
    """Writes one run: buffered metrics, artifacts, a heartbeat, and the end.

    A store that is away does not stop the work: lines wait in a spool file and are sent with the next flush.
    Steps that the run has already are not written twice, so a resumed curve has no doubles. What writes to
    the run may raise ClaimLost.

    is_new: nothing was done for the run before. halve: an earlier attempt ran out of GPU memory.
    """

    def __init__(self, client: MlflowClient, run_id: str, cell: Cell, spool: Path, tags: dict[str, str]):
        self.run_id, self.cell = run_id, cell
        self._client = client
        self._spool = spool / f"{run_id}.jsonl"
        self._lock = threading.Lock()
        self._buffer: list[Metric] = []
        self._flushed = time.monotonic()
        run = client.get_run(run_id)
        self._experiment_id = run.info.experiment_id
        self.is_new = "claimed" not in run.data.tags
        self._ask_again = 0.0
        self._logged_to = self._last_steps(run.data.metrics)
        now = f"{time.time():.0f}"  # a run that is taken up again has an older start_time
        self._owner = owner_of_this_process()
        for name in ("error", DIVERGED):  # of an earlier attempt
            if name in run.data.tags:
                client.delete_tag(run_id, name)
        self._set_tags({**tags, "owner": self._owner, "heartbeat": now, "claimed": now})
        self._confirmed = time.time()
        self.halve = OUT_OF_MEMORY in run.data.tags
        if self.halve:
            client.set_tag(run_id, OUT_OF_MEMORY, "earlier")
        client.update_run(run_id, status="RUNNING")
        self._stop = threading.Event()
        threading.Thread(target=self._beat, name=f"heartbeat-{run_id[:8]}", daemon=True).start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each of the named curves."""
        now = int(time.time() * 1000)
        with self._lock:
            self._buffer += [
                Metric(name, float(value), now, step)
                for name, value in metrics.items()
                if step > self._logged_to.get(name, -1)
            ]
        if time.monotonic() - self._flushed > FLUSH_SECONDS or len(self._buffer) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what waits: the spool first, then the buffer; what cannot be sent goes to the spool."""
        with self._lock:
            pending, self._buffer = self._spooled() + self._buffer, []
            self._flushed = time.monotonic()
            if self._flushed < self._ask_again:
                self._spool_all(pending)
                return
            try:
                self._confirm()
                for start in range(0, len(pending), BATCH):
                    self._client.log_batch(self.run_id, metrics=pending[start : start + BATCH])
            except Exception as error:
                if not is_away(error):
                    raise
                why = first_line(error)
                logger.warning(
                    "the ledger is away (%s); %d points wait in %s", why, len(pending), self._spool
                )
                self._spool_all(pending)
                now = time.monotonic()
                self._ask_again = now + PATIENCE * (now - self._flushed)
            else:
                self._spool.unlink(missing_ok=True)

    def tag(self, name: str, value: str) -> None:
        once_it_is_back(lambda: self._client.set_tag(self.run_id, name, value))

    def table(self, name: str, table: pa.Table) -> None:
        """Keep a table as the artifact `name`.parquet."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.parquet"
            pq.write_table(table, path)
            once_it_is_back(lambda: self._client.log_artifact(self.run_id, str(path)))

    def finish(self, metrics: Mapping[str, float]) -> None:
        """Write the final numbers and close the run as FINISHED."""
        self.log(self._final_step(), metrics)
        self.flush()
        once_it_is_back(self._delete_twins)
        self._close("FINISHED")

    def fail(self, trace: str, diverged: bool = False) -> None:
        """Close the run as FAILED, with the traceback as artifact and its last line as a tag.

        diverged: a number of it was not finite.

        A store that refuses (the run was deleted meanwhile) is only reported, and so is a lost claim.
        """
        try:
            once_it_is_back(self._confirm)
            once_it_is_back(lambda: self._client.log_text(self.run_id, trace, "traceback.txt"))
            self.tag("error", trace.strip().splitlines()[-1][:500])
            if diverged:
                self.tag(DIVERGED, "true")
            self._close("FAILED")
        except (MlflowException, OSError, ClaimLost) as error:
            self._stop.set()
            logger.error("run %s cannot be marked as FAILED: %s", self.run_id, first_line(error))

    def release(self) -> None:
        """Leave the run for whoever comes next, as this process may live on. Does not wait for the store."""
        self._stop.set()
        try:
            self.flush()
            self._client.set_terminated(self.run_id, "KILLED")
        except (MlflowException, OSError, ClaimLost) as error:
            logger.warning("run %s is left as RUNNING: %s", self.run_id, first_line(error))

    def _close(self, status: str) -> None:
        self.flush()
        while self._spool.exists():  # a run must not say FINISHED before its points are in
            time.sleep(FLUSH_SECONDS)
            self._ask_again = 0.0  # there is nothing else to do
            self.flush()
        once_it_is_back(lambda: self._client.set_terminated(self.run_id, status))
        self._stop.set()

    def _confirm(self) -> None:
        """Raise ClaimLost if another process has the run, as it may after this machine slept.

        The heartbeat sees to it; where it could not of late, the ledger is asked.
        """
        if time.time() - self._confirmed > STALE_SECONDS / 2 and self._is_lost():
            self._stop.set()
            raise ClaimLost(f"run {self.run_id} was taken over by another process")

    def _is_lost(self) -> bool:
        """Whether the ledger names another owner."""
        lost = self._client.get_run(self.run_id).data.tags.get("owner") != self._owner
        self._confirmed = 0.0 if lost else time.time()
        return lost

    def _delete_twins(self) -> None:
        """A creation that was given up as too late may have come through all the same, and is nobody's."""
        query = f"tags.fingerprint = '{self.cell.fingerprint}'"
        for run in self._client.search_runs([self._experiment_id], query):
            if run.info.run_id != self.run_id and run.info.status != "FINISHED":
                self._client.delete_run(run.info.run_id)

    def _final_step(self) -> int:
        return getattr(self.cell, "steps", 0)

    def _spooled(self) -> list[Metric]:
        if not self._spool.exists():
            return []
        return [Metric(*json.loads(line)) for line in self._spool.read_text().splitlines()]

    def _spool_all(self, points: list[Metric]) -> None:
        lines = (json.dumps([m.key, m.value, m.timestamp, m.step]) for m in points)
        temporary = self._spool.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in lines))
        os.replace(temporary, self._spool)  # so that a kill leaves no half a spool

    def _last_steps(self, curves: Iterable[str]) -> dict[str, int]:
        """The last step that the run has of each curve, sent or spooled."""
        histories = [self._client.get_metric_history(self.run_id, name) for name in curves]
        last: dict[str, int] = {}
        for point in itertools.chain(*histories, self._spooled()):
            last[point.key] = max(point.step, last.get(point.key, -1))
        return last

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        self._client.log_batch(self.run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                if self._is_lost():
                    return
                self._client.set_tag(self.run_id, "heartbeat", f"{time.time():.0f}")
            except (MlflowException, OSError) as error:
                logger.warning("heartbeat of run %s not written: %s", self.run_id, first_line(error))
