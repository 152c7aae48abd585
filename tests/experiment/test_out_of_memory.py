"""A GPU that is too small for the micro-batch: once more with half of it, to the same result."""

from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from metatok.experiment import Cell, Home, Ledger, Pretrain, RunRecord
from metatok.experiment.design import Context

from . import children, tiny

NewCell = Callable[..., Pretrain]


def run_of(ledger: Ledger, cell: Cell) -> RunRecord:
    (found,) = [r for r in ledger.records(cell.kind, None) if r.fingerprint == cell.fingerprint]
    return found


@pytest.mark.parametrize("micro_batch_size", [4, 32])
def test_the_next_attempt_takes_half_the_micro_batch(
    micro_batch_size: int,
    ledger: Ledger,
    home: Home,
    fresh_home: Home,
    new_cell: NewCell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = new_cell()
    assert cell.batch_size == 4  # of which a larger micro-batch holds no more
    settings = tiny.SETTINGS.model_copy(update={"micro_batch_size": micro_batch_size})
    with monkeypatch.context() as patch:
        tiny.limit_memory(2, patch.setattr)
        assert tiny.run([cell], ledger, home, settings=settings) == ["failed"]
        assert "CUDA out of memory" in run_of(ledger, cell).tags["error"]
        assert tiny.run([cell], ledger, home, settings=settings) == ["finished"]
    run = run_of(ledger, cell)
    assert run.tags["out_of_memory"] == "earlier"
    whole = cell.run(Context(fresh_home, tiny.SETTINGS)).metrics
    assert run.metrics["validation_loss"] == pytest.approx(whole["validation_loss"], abs=1e-4)


def test_half_may_be_too_much_as_well(
    ledger: Ledger, home: Home, new_cell: NewCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = new_cell()
    tiny.limit_memory(1, monkeypatch.setattr)
    for times in ("once", "twice", "twice"):
        assert tiny.run([cell], ledger, home) == ["failed"]
        assert run_of(ledger, cell).tags["out_of_memory"] == times


def test_one_rank_of_two_is_enough(
    ledger: Ledger, home: Home, new_cell: NewCell, processes: ForkServerContext, tmp_path: Path
) -> None:
    # A batch of 8 is 4 sequences a rank.
    cell = new_cell(batch_size=8)

    def attempt(name: str) -> list[Any]:
        folder = tmp_path / name
        folder.mkdir()
        ends = [processes.Pipe(duplex=False) for _ in range(2)]
        for rank, (_, send) in enumerate(ends):
            arguments = (rank, folder, ledger, home, cell, 2, send)
            ranks: Any = processes.Process(
                target=children.run_where_rank_1_is_too_small, args=arguments, daemon=True
            )
            ranks.start()
        return [receive.recv() if receive.poll(90) else None for receive, _ in ends]

    first = attempt("first")
    assert first[1] == "OutOfMemoryError"
    assert first[0] != ["finished"]
    assert run_of(ledger, cell).tags["out_of_memory"] == "once"
    assert attempt("second") == [["finished"], ["finished"]]
