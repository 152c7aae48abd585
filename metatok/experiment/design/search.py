"""Hyperparameter search by successive halving: what is tried, in which rounds, and which of it stays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from metatok.config import Config, Count, Natural, Positive
from metatok.randomness import generator


class Setting(Config):
    """What a search decides. step_factor multiplies the preset's steps of every train length."""

    learning_rate: Positive
    step_factor: Positive


class Choice(Setting):
    """The setting chosen for all fine-tunes of a model on a task, and the candidate that won with it.

    exact_match: the winner's, on n examples of the validation split.
    """

    model: str
    task: str
    candidate: str
    exact_match: Annotated[float, Field(ge=0, le=1)]
    n: Count


class SearchSettings(Config):
    """Learning rate and steps of fine-tuning, for each model and task by itself.

    candidates: how many settings are tried; 0 = no search. Their learning rates lie one in each of as many
    equal parts of the range, on a log scale; step_factors are dealt out evenly. All are trained at the first
    train length on the first seed's base. A round gives its candidates a share of their steps and keeps the
    best 1/reduction by exact match on n_validation examples of the validation split, never of the test
    split; the last round trains to the end. Every round starts from the base: so a candidate is a cell like
    any other, and an interrupted search chooses what an uninterrupted one does.
    """

    candidates: Natural = 0
    learning_rates: tuple[Positive, Positive] = (1e-5, 1e-3)
    step_factors: tuple[Positive, ...] = Field(default=(1.0,), min_length=1)
    reduction: Count = Field(default=3, ge=2)
    n_validation: Count = 1000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.learning_rates
        if low > high:
            raise ValueError(f"learning_rates={self.learning_rates}: give two bounds, the lower one first")
        if self.candidates == 1:
            raise ValueError("candidates=1: give at least 2 to choose from, or 0 for no search")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """Of each round, the share of a candidate's steps that it trains; the last is 1."""
        rounds = max(1, math.floor(math.log(max(self.candidates, 1), self.reduction) + 1e-9))
        return tuple(self.reduction ** -float(rounds - 1 - i) for i in range(rounds))

    def draw(self, model: str, task: str) -> list[Setting]:
        """The first round's settings."""
        rng = generator(0, f"search/{model}/{task}")
        low, high = (math.log(bound) for bound in self.learning_rates)
        places = (rng.permutation(self.candidates) + rng.random(self.candidates)) / self.candidates
        return [
            Setting(
                # Four digits, so that what a table prints is what was trained.
                learning_rate=float(f"{math.exp(low + place * (high - low)):.3e}"),
                step_factor=self.step_factors[i % len(self.step_factors)],
            )
            for i, place in enumerate(places.tolist())
        ]

    def keep(self, scores: Mapping[Setting, float]) -> list[Setting]:
        """The best 1/reduction of a round's settings, best first, of equals the one tried first."""
        ranked = sorted(scores, key=lambda setting: -scores[setting])
        return ranked[: math.ceil(len(scores) / self.reduction)]
