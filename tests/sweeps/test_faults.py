"""What a sweep must survive, each fault once at a chosen moment; tests/chaos.py does them at random ones."""

import contextlib
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metatok.experiment import Ledger
from tests import chaos

# Each strikes as soon as that training has written another checkpoint.
FAULTS: list[tuple[str, chaos.Fault]] = [
    ("pretrain", "worker"),
    ("pretrain", "interrupt"),
    ("finetune", "driver"),
    ("finetune", "trial"),
    ("finetune", "raylet"),
    ("finetune", "disk"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with chaos.several_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_at_once(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chaos.Sweep]:
    """The second of two undisturbed sweeps of the same cells that ran at the same time."""
    home = tmp_path_factory.mktemp("sweep") / "home"
    with contextlib.ExitStack() as stack:
        sweeps = [stack.enter_context(contextlib.closing(chaos.Sweep(home, cluster))) for _ in range(2)]
        for sweep in sweeps:
            sweep.start()
        for sweep in sweeps:
            assert sweep.wait() == 0, sweep.log.read_text()
        yield sweeps[1]


@pytest.mark.timeout(400)
def test_two_sweeps_at_once_share_their_cells_and_run_none_twice(two_at_once: chaos.Sweep) -> None:
    ledger = Ledger.open(two_at_once.home)
    records = [record for kind in ("pretrain", "finetune", "ablate") for record in ledger.records(kind, None)]
    assert sorted(r.fingerprint for r in records) == sorted(cell.fingerprint for cell in two_at_once.cells)
    for record in records:
        assert record.status == "FINISHED"
        assert abs(float(record.tags["claimed"]) - record.start_time / 1000) < 5  # and never again
    for cell in two_at_once.cells[:2]:
        (record,) = (record for record in records if record.fingerprint == cell.fingerprint)
        history = ledger.client.get_metric_history(record.run_id, "loss")
        assert [point.step for point in history] == list(range(2, cell.steps + 1, 2))  # type: ignore[union-attr]


@pytest.mark.timeout(400)
def test_a_sweep_ends_as_if_nothing_had_happened(
    cluster: Any, two_at_once: chaos.Sweep, tmp_path: Path
) -> None:
    home, faults = tmp_path / "home", FAULTS
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(chaos.small_disk(home))
        except PermissionError as error:
            warnings.warn(f"no disk is filled: {error}", stacklevel=1)
            faults = FAULTS[:-1]
        sweep = stack.enter_context(contextlib.closing(chaos.Sweep(home, cluster)))
        for kind, fault in faults:
            if not sweep.running():
                sweep.start()
            before = sweep.reached(kind)
            sweep.until(lambda kind=kind, before=before: sweep.reached(kind) > before)
            assert chaos.strike(sweep, fault, random.Random(0)), sweep.log.read_text()
            if fault == "driver":
                sweep.wait()
            elif fault == "interrupt":
                assert sweep.wait() == 130, sweep.log.read_text()
        pretrained = sweep.ledger.records("pretrain")
        sweep.complete(attempts=4)
        assert sweep.ledger.records("pretrain") == pretrained  # finished then, and not touched again
        assert chaos.differences(chaos.facts(sweep.home), chaos.facts(two_at_once.home)) == []
