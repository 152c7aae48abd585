"""What other processes do to a ledger in these tests."""

import os
import signal
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  (here once, not in every child)
import torch

from metatok.experiment import Cell, Home, Ledger
from metatok.experiment.execution import Progress

from . import tiny

torch.set_num_threads(1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def claim_and_die(ledger: Ledger, cell: Cell, logged: int = 0, flushed: int = 0) -> None:
    """Log steps 1 to `logged`, of which those to `flushed` are sent, and be killed."""
    run = ledger.claim(cell, tiny.TAGS)
    assert run is not None
    for step in range(1, logged + 1):
        run.log(step, {"loss": 1 / step, "learning_rate": float(step)})
        if step == flushed:
            run.flush()
    die()


def claim_and_hold(ledger: Ledger, cell: Cell, claimed: Event, finish: Event, step: int = 0) -> None:
    """Claim, get to `step`, say so, and finish when told."""
    run = ledger.claim(cell, tiny.TAGS)
    assert run is not None
    if step:
        run.log(step, {"loss": 0.5, "tokens_per_second": 2000.0})
        run.flush()
    claimed.set()
    assert finish.wait(60)
    run.finish({"validation_loss": 1.5})


def claim_in_a_race(ledger: Ledger, cell: Cell, start: Barrier, answer: Connection) -> None:
    """Claim at the same moment as others; the winner works a little and finishes. Answers whether it won."""
    start.wait(60)
    run = ledger.claim(cell, tiny.TAGS, poll_seconds=0.2)
    if run is not None:
        time.sleep(0.5)
        run.log(1, {"loss": 1.0})
        run.finish({"validation_loss": 1.0})
    answer.send(run is not None)


def open_ledger(home: Home, start: Barrier, answer: Connection) -> None:
    start.wait(60)
    answer.send(sorted(Ledger.open(home).experiments))


def run_until(ledger: Ledger, home: Home, cells: list[Cell], kind: str, step: int) -> None:
    """Run cells, and be killed as soon as one of `kind` reaches `step`."""

    def watch(progress: Progress) -> None:
        if progress.cell.kind == kind and progress.step == step:
            die()

    tiny.run(cells, ledger, home, watch)


def run_as_rank(
    rank: int,
    folder: Path,
    ledger: Ledger,
    home: Home,
    cells: list[Cell],
    answer: Any,
    patience: float = 60.0,
) -> None:
    """One of two DDP processes that run cells together; after `patience` seconds it waits no more."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=patience),
    )
    seen: list[tuple[str, int]] = []
    statuses, error = [], ""
    for cell in cells:
        try:
            statuses += tiny.run([cell], ledger, home, lambda p: seen.append((p.status, p.step)))
        except Exception as raised:
            error = str(raised)
    answer.send((statuses, seen, error))
    dist.destroy_process_group()


def run_where_rank_1_is_too_small(
    rank: int, folder: Path, ledger: Ledger, home: Home, cell: Cell, limit: int, statuses: Any
) -> None:
    """One of two DDP processes; on rank 1 no pass over more than `limit` sequences fits. Sends what came."""
    import torch.distributed as dist

    if rank == 1:
        tiny.limit_memory(limit)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        statuses.send(tiny.run([cell], ledger, home))
    except Exception as error:
        statuses.send(type(error).__name__)
        os._exit(1)  # as a trainer ends the group
    dist.destroy_process_group()
