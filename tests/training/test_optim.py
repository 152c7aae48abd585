"""The learning-rate schedule and AdamW's parameter groups."""

import math

import pytest
import torch
from pydantic import ValidationError

from metatok.training import OptimConfig
from metatok.training.loop import adamw

from .conftest import build

PAPER = OptimConfig(
    learning_rate=6e-4, min_learning_rate=6e-5, warmup_steps=2000, decay_steps=600_000, weight_decay=0.1
)


def nanogpt_rate(it: int, lr: float, min_lr: float, warmup: int, decay: int) -> float:
    """get_lr of nanoGPT's train.py."""
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    if it > decay:
        return min_lr
    ratio = (it - warmup) / (decay - warmup)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (lr - min_lr)


@pytest.mark.parametrize("step", [0, 1, 1000, 1999, 2000, 2001, 199_999, 301_000, 599_999, 600_000, 700_000])
def test_the_schedule_is_nanogpts(step: int) -> None:
    assert PAPER.rate_at(step, 600_000) == pytest.approx(nanogpt_rate(step, 6e-4, 6e-5, 2000, 600_000))


def test_the_papers_schedule_of_600k_steps_stopped_at_200k_has_not_decayed_yet() -> None:
    assert PAPER.rate_at(0, 200_000) == pytest.approx(6e-4 / 2001)
    assert PAPER.rate_at(2000, 200_000) == 6e-4
    # At a third of the way the cosine has fallen from 1 to about 3/4.
    last = PAPER.rate_at(199_999, 200_000)
    assert last == PAPER.rate_at(199_999, 600_000)
    assert last == pytest.approx(6e-5 + 0.75 * (6e-4 - 6e-5), rel=0.01)


def test_without_decay_steps_the_rate_ends_at_its_minimum() -> None:
    optim = OptimConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=10)
    assert optim.rate_at(10, 110) == 1e-3
    assert optim.rate_at(60, 110) == pytest.approx((1e-3 + 1e-4) / 2)
    assert optim.rate_at(110, 110) == pytest.approx(1e-4)
    assert optim.rate_at(109, 110) < 1.01e-4
    constant = OptimConfig(learning_rate=2e-5, min_learning_rate=2e-5)
    assert {constant.rate_at(step, 400) for step in (0, 1, 200, 399)} == {2e-5}


def test_a_run_no_longer_than_its_warm_up_only_warms_up() -> None:
    optim = OptimConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=20)
    rates = [optim.rate_at(step, 4) for step in range(4)]
    assert rates == [pytest.approx(1e-3 * (step + 1) / 21) for step in range(4)]
    assert optim.rate_at(20, 20) == 1e-3


def test_only_matrices_decay() -> None:
    model = build("meta_ape", bias=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = adamw(model, OptimConfig(learning_rate=0.5, weight_decay=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        # With no gradient AdamW moves a parameter by decay alone: p * (1 - lr * decay).
        factor = 1 - 0.5 * 0.1 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, msg=name)
    assert {p.dim() for p in model.parameters()} == {1, 2}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"min_learning_rate": 1.0}, "min_learning_rate=1.0"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"decay_steps": 0}, "decay_steps"),
        ({"beta2": 1.0}, "beta2"),
        ({"momentum": 0.9}, "momentum"),
    ],
)
def test_impossible_settings_are_refused_by_name(fields: dict[str, float], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        OptimConfig.model_validate(fields)
