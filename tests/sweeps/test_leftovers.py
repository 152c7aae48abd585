"""A trainer that is killed while its workers start must not keep their CPUs from the rest of the sweep."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sweeps.engine import leftovers


@pytest.fixture
def two_cpus() -> Iterator[None]:
    before = dict(os.environ)
    ray.init("local", num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@ray.remote(num_cpus=0)
class Trainer:
    """Takes a placement group of all CPUs, as Ray Train's controller does for its workers."""

    def start(self, workers: int) -> None:
        self.group = placement_group([{"CPU": 1}] * 2)
        ray.get(self.group.ready())
        place = PlacementGroupSchedulingStrategy(self.group)
        self.workers = [Worker.options(scheduling_strategy=place).remote() for _ in range(workers)]
        ray.get([worker.ping.remote() for worker in self.workers])


@ray.remote(num_cpus=1)
class Worker:
    def ping(self) -> None:
        pass


@ray.remote(num_cpus=2)
def waits_for_both() -> str:
    return "ran"


def test_what_a_dead_trainer_held_is_freed_and_nothing_else(
    two_cpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "LOOK_SECONDS", 0.5)
    trainer: Any = Trainer.remote()
    with leftovers.leftovers_freed():
        ray.get(trainer.start.remote(workers=1))
        waiting = waits_for_both.remote()
        assert ray.wait([waiting], timeout=3)[0] == []  # many looks later
        ray.kill(trainer)
        assert ray.get(waiting, timeout=30) == "ran"
