"""Who works on a run: a process, named in the run's tags, that writes a heartbeat there."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import psutil
from mlflow.entities import Run

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
# A stale heartbeat that stands still for so long under watch is a dead process's.
WATCH_SECONDS = 2 * HEARTBEAT_SECONDS


def owner_of_this_process() -> str:
    """host:pid:start time, which no other process ever has."""
    process = psutil.Process()
    return f"{socket.gethostname()}:{process.pid}:{process.create_time():.0f}"


def owner_is_alive(tags: Mapping[str, str]) -> bool:
    """Whether another process still works on the run with these tags."""
    return not _is_stale(tags) and not owner_is_gone(tags)


def owner_is_gone(tags: Mapping[str, str]) -> bool:
    """Whether the owner, a process of this host, has ended; False where this host cannot tell."""
    try:
        host, pid, created = tags["owner"].rsplit(":", 2)
        if host != socket.gethostname():
            return False
        if int(pid) == os.getpid():
            return True  # left by an earlier attempt in this very process
        # The start time is reckoned from the clock, which may have been set meanwhile.
        return abs(psutil.Process(int(pid)).create_time() - float(created)) > 2
    except (psutil.NoSuchProcess, ValueError, KeyError):
        return True


def _is_stale(tags: Mapping[str, str]) -> bool:
    return time.time() - float(tags.get("heartbeat", 0)) > STALE_SECONDS


class Watch:
    """What one who waits for a run sees of its owner.

    A machine that slept and a store that was away make heartbeats stale whose writers are well; those write
    the next one soon. So a stale one has to stand still for a while, by the clock of who waits.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}  # run id -> its heartbeat, and since when it is that
        self._patience = WATCH_SECONDS

    def at_work(self, run: Run) -> bool:
        """Whether another process is at work on the run, as far as can be told by now."""
        tags = run.data.tags
        if run.info.status != "RUNNING" or owner_is_gone(tags):
            return False
        beat, now = tags.get("heartbeat", ""), time.monotonic()
        if self._seen.get(run.info.run_id, ("", 0.0))[0] != beat:
            self._seen[run.info.run_id] = (beat, now)
        return not _is_stale(tags) or now - self._seen[run.info.run_id][1] < self._patience

    def store_was_away(self) -> None:
        """Begin anew: no owner could write, and some wait out their time-outs yet."""
        self._seen.clear()
        self._patience = STALE_SECONDS
