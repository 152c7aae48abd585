"""A fine-tune that is watched while it trains: what the ledger has of it."""

from collections.abc import Callable
from typing import Any

import pytest

from metatok.experiment import Home, Ledger, Pretrain
from metatok.experiment.design import distinct_inputs
from metatok.experiment.design.kinds.finetune import train_set, validation_set
from metatok.experiment.execution import Progress
from metatok.experiment.inputs import Inputs
from metatok.training import CheckpointStore

from . import tiny
from .test_execute import Undisturbed, curve, final, record_of

WATCHED: dict[str, Any] = {"validate_every": 4, "n_validation": 10, "steps": 16}


class Stopped(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("learned_at", [None, 0.01, 1.0])
def test_the_curve_and_what_it_gave_survive_a_stop(
    ledger: Ledger, home: Home, fresh_home: Home, new_cell: Callable[..., Pretrain], learned_at: float | None
) -> None:
    base = new_cell(steps=2, context_length=128)
    cell = tiny.finetune(base, train_length=128, learned_at=learned_at, **WATCHED)
    assert tiny.run([base], ledger, home) == ["finished"]

    def stop(progress: Progress) -> None:
        if progress.cell == cell and progress.step == 10:
            raise Stopped

    with pytest.raises(Stopped):
        tiny.run([cell], ledger, home, stop)
    assert CheckpointStore(home.checkpoints(cell.fingerprint)).steps() == [4, 8]
    assert tiny.run([cell], ledger, home) == ["finished"]
    alone = Undisturbed(fresh_home)
    alone.run(base)
    alone.run(cell)
    found = final(ledger, cell)
    assert found == alone.metrics
    assert found["n_validation"] == 10
    assert ("phases_learned" in found) == (learned_at is not None)
    looks = curve(ledger, cell, "validation_exact_match")
    assert looks == alone.curves["validation_exact_match"]
    assert [step for step, _ in looks] == [4, 8, 12, 16]
    reached = [step for step, score in looks if score >= 0.9]
    assert found.get("steps_to_90") == (reached[0] if reached else None)
    assert record_of(ledger, cell).params["validate_every"] == "4"


def test_validation_examples_are_nobodys_train_or_test_examples(home: Home) -> None:
    cell = tiny.finetune(tiny.pretrain(context_length=128), train_length=128, learned_at=0.9, **WATCHED)
    phases = cell.curriculum.phases_for(128)
    assert len(phases) > 1
    wanted = {validation_set(cell), *(validation_set(cell, phase) for phase in phases)}
    wanted |= {train_set(cell), *(train_set(cell, phase) for phase in phases)}
    assert wanted < set(distinct_inputs([cell]))
    inputs = Inputs(home.datasets)

    def prompts(split: str) -> set[bytes]:
        sets = [inputs.task_dataset(config) for config in distinct_inputs([cell]) if config.split == split]
        return {each.prompt(i).tobytes() for each in sets for i in range(len(each))}

    assert not prompts("validation") & (prompts("train") | prompts("test"))
    other = tiny.finetune(tiny.pretrain(seed=5, context_length=128), train_length=128, seed=5, **WATCHED)
    assert validation_set(other) == validation_set(cell)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"validate_every": 4}, "n_validation=0: give both"),
        ({"n_validation": 4}, "validate_every=0, n_validation=4: give both"),
        ({"learned_at": 0.9}, "learned_at=0.9: only looks"),
    ],
)
def test_looks_that_do_not_go_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.finetune(**fields)
