"""What a sweep must survive, each fault once at a chosen moment; tests/chaos.py does them at random ones."""

import contextlib
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import chaos

# Each strikes as soon as that training has written another checkpoint. "rival" starts a second sweep of
# the same cells beside the first.
FAULTS: list[tuple[str, chaos.Fault]] = [
    ("pretrain", "worker"),
    ("finetune", "driver"),
    ("finetune", "trial"),
    ("finetune", "raylet"),
    ("finetune", "interrupt"),
    ("finetune", "disk"),
    ("finetune", "rival"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with chaos.several_nodes() as cluster:
        yield cluster


@pytest.mark.timeout(600)
def test_a_sweep_ends_as_if_nothing_had_happened(cluster: Any, tmp_path: Path) -> None:
    undisturbed = chaos.without_ray(tmp_path / "undisturbed")
    home, faults = tmp_path / "home", FAULTS
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(chaos.small_disk(home))
        except PermissionError as error:
            warnings.warn(f"no disk is filled: {error}", stacklevel=1)
            faults = [(kind, fault) for kind, fault in FAULTS if fault != "disk"]
        sweep = stack.enter_context(contextlib.closing(chaos.Sweep(home, cluster)))
        for kind, fault in faults:
            if not sweep.running():
                sweep.start()
            before = sweep.reached(kind)
            sweep.until(lambda kind=kind, before=before: sweep.reached(kind) > before)
            assert chaos.strike(sweep, fault, random.Random(1)), sweep.log.read_text()
            if fault == "driver":
                sweep.wait()
            elif fault == "interrupt":
                assert sweep.wait() == 130, sweep.log.read_text()
        pretrained = sweep.ledger.records("pretrain")
        sweep.complete(attempts=4)
        assert sweep.ledger.records("pretrain") == pretrained  # finished then, and not touched again
        assert sweep.rival is not None
        assert sweep.rival.returncode == 0
        assert chaos.taken_over(sweep.ledger.records("ablate")) == []  # all done while two sweeps ran
        assert chaos.differences(chaos.facts(sweep.home), undisturbed) == []
