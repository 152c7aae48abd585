"""Two DDP processes train as one does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from metatok.training import pretrain, train

from .conftest import build
from .ddp_worker import SETTINGS, STEPS, lopsided
from .test_loop import OPTIM, Logs, corpus

ROOT = Path(__file__).parents[2]
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each of two ranks had at the end."""
    out = tmp_path_factory.mktemp("ddp")
    command = [sys.executable, "-m", "tests.training.ddp_worker", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", ["gpt2_ape", "meta_rope", "lopsided"])
def test_two_ranks_equal_one_process(name: str, ranks: Ranks) -> None:
    logs: Logs = []
    shared: dict[str, Any] = {"steps": STEPS, "optim": OPTIM, "settings": SETTINGS}
    shared["on_log"] = lambda step, metrics: logs.append((step, metrics))
    model = build("meta_ape" if name == "lopsided" else name)
    if name == "lopsided":
        train(model, lopsided, **shared)
    else:
        pretrain(model, corpus(), batch_size=6, **shared)
    for rank in ranks:
        for key, value in model.state_dict().items():
            torch.testing.assert_close(rank[name]["weights"][key], value, atol=1e-5, rtol=0, msg=key)
        for (step, metrics), (wanted_step, wanted) in zip(rank[name]["logs"], logs, strict=True):
            assert step == wanted_step
            assert metrics["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
            assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)


def test_the_lopsided_batches_are_what_they_are_meant_to_be() -> None:
    for step in range(STEPS):
        batch = lopsided(step)
        assert (batch.tokens[:3] == 39).sum() == 0 < (batch.tokens[3:] == 39).sum()
        first, second = ((rows >= 0).sum() for rows in batch.targets.split(3))
        assert 2 * first < second


def test_both_ranks_end_with_the_very_same_weights(ranks: Ranks) -> None:
    for name in ("gpt2_ape", "meta_rope", "lopsided"):
        first, second = (rank[name]["weights"] for rank in ranks)
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_batch_that_the_workers_cannot_share_is_refused(ranks: Ranks) -> None:
    assert all("batch_size=5" in rank["refused"] and "2 workers" in rank["refused"] for rank in ranks)
