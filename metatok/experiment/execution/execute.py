"""Run cells against the ledger: claim, do, record. What Ray's workers call, and what a notebook can."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from metatok.experiment.design import Cell, Context, Metrics, Outcome
from metatok.experiment.ledger import CellRun, ClaimLost, Ledger
from metatok.experiment.ledger.run import OUT_OF_MEMORY
from metatok.training.loop import agreed, world

logger = logging.getLogger(__name__)

_LIBC = ctypes.CDLL(None)

Status = Literal["running", "finished", "already_finished", "failed", "skipped"]


@dataclass(frozen=True)
class Progress:
    """One line of news about a cell."""

    cell: Cell
    status: Status
    step: int = 0
    metrics: Metrics | None = None
    error: str = ""


OnProgress = Callable[[Progress], None]


def run_cells(
    cells: Sequence[Cell],
    ledger: Ledger,
    context: Context,
    tags: dict[str, str],
    on_progress: OnProgress = lambda progress: None,
) -> dict[str, Status]:
    """Run cells in order, those already finished left out. Returns fingerprint -> how it went.

    A cell that raises, or of which a number is not finite, is recorded as FAILED with its traceback; those of
    `cells` that build on it are skipped, the rest goes on. Under torch.distributed all ranks call this, and
    rank 0 alone writes; there a cell that raises ends the group.
    """
    outcome: dict[str, Status] = {}
    for cell in cells:
        if any(outcome.get(parent.fingerprint) in ("failed", "skipped") for parent in cell.parents):
            outcome[cell.fingerprint] = "skipped"
            on_progress(Progress(cell, "skipped"))
        else:
            outcome[cell.fingerprint] = _run_one(cell, ledger, context, tags, on_progress)
            _give_back_memory()
    return outcome


def _give_back_memory() -> None:
    """What allocators keep of freed memory goes back to the machine, which trials share.

    A worker runs many cells of many shapes; glibc's heaps, fragmented by them, would grow to gigabytes.
    """
    if hasattr(_LIBC, "malloc_trim"):  # glibc's alone
        _LIBC.malloc_trim(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _run_one(
    cell: Cell, ledger: Ledger, context: Context, tags: dict[str, str], on_progress: OnProgress
) -> Status:
    run, ours = _claimed(cell, ledger, context, tags)
    if not ours:
        on_progress(Progress(cell, "already_finished"))
        return "already_finished"
    on_progress(Progress(cell, "running"))
    halve = agreed(run is not None and run.halve)
    settings = context.settings.halved(_sequences(cell)) if halve else context.settings

    def on_log(step: int, metrics: Metrics) -> None:
        if run is not None:
            run.log(step, metrics)
        on_progress(Progress(cell, "running", step, metrics))

    def before_checkpoint() -> None:
        if run is not None:
            run.flush()

    told = replace(context, settings=settings, on_log=on_log, before_checkpoint=before_checkpoint)
    try:
        result = cell.run(told)
        _check_finite(result)
        if run is not None:
            _record(run, result)
    except ClaimLost as error:
        if world()[1] > 1:
            raise  # as below
        logger.warning("%s %s: %s", cell.kind, cell.id, error)
        return _run_one(cell, ledger, context, tags, on_progress)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError):
            ledger.set_tag(cell.fingerprint, OUT_OF_MEMORY, "twice" if halve else "once")
        if run is not None:
            run.fail(traceback.format_exc(), diverged=isinstance(error, FloatingPointError))
        if world()[1] > 1:
            raise  # the other ranks may wait in a collective for this one: the group has to end
        on_progress(Progress(cell, "failed", error=f"{type(error).__name__}: {error}"))
        return "failed"
    except BaseException:  # as Ctrl-C
        if run is not None:
            run.release()
        raise
    on_progress(Progress(cell, "finished", metrics=result.metrics))
    return "finished"


def _check_finite(result: Outcome) -> None:
    """Errors: FloatingPointError if a final number is none."""
    bad = sorted(name for name, value in result.metrics.items() if not math.isfinite(value))
    if bad:
        raise FloatingPointError(f"not finite: {', '.join(bad)}")


def _claimed(
    cell: Cell, ledger: Ledger, context: Context, tags: dict[str, str]
) -> tuple[CellRun | None, bool]:
    """On rank 0 the run to write to; on every rank whether the cell is to be done here.

    While rank 0 waits it says so at each look: a rank that hears nothing for half an hour gives up.
    """
    if world()[0] > 0:
        while (answer := agreed("")) == "wait":
            pass
        return None, answer == "do"
    run = ledger.claim(cell, tags, on_wait=lambda: agreed("wait"))
    if run is not None and run.is_new:
        cell.store(context).set_aside()
    return run, agreed("done" if run is None else "do") == "do"


def _sequences(cell: Cell) -> int | None:
    """What one rank trains on a step, where the cell trains."""
    batch_size = getattr(cell, "batch_size", None)
    return batch_size and -(-batch_size // world()[1])


def _record(run: CellRun, result: Outcome) -> None:
    for name, table in result.tables.items():
        run.table(name, table)
    if result.checkpoint is not None:
        run.tag("checkpoint", result.checkpoint)
    run.finish(result.metrics)


def process_tags() -> dict[str, str]:
    """Where this process runs: host and GPU."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"host": socket.gethostname(), "gpu": gpu, "cpus": str(os.cpu_count())}
