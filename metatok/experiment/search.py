"""Hyperparameter search by successive halving, in cells: a round's candidates, and which of them stay."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, model_validator

from metatok.experiment.cells import Candidate, Cell, Finetune, model_name
from metatok.experiment.plan import with_ancestors
from metatok.randomness import generator

if TYPE_CHECKING:
    from metatok.experiment.ledger import Ledger
    from metatok.experiment.preset import Preset


class Setting(BaseModel):
    """What a search decides. step_factor multiplies the preset's steps of every train length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(gt=0)
    step_factor: float = Field(gt=0)


class Choice(Setting):
    """The setting chosen for all fine-tunes of a model on a task, and the candidate that won with it.

    exact_match: the winner's, on n examples of the validation split.
    """

    model: str
    task: str
    candidate: str
    exact_match: float
    n: int


class SearchSettings(BaseModel):
    """Learning rate and steps of fine-tuning, for each model and task by itself.

    candidates: how many settings are tried; 0 = no search. Their learning rates lie one in each of as many
    equal parts of the range, on a log scale; step_factors are dealt out evenly. All are trained at the first
    train length on the first seed's base. A round gives its candidates a share of their steps and keeps the
    best 1/reduction by exact match on n_validation examples of the validation split, never of the test
    split; the last round trains to the end. Every round starts from the base: so a candidate is a cell like
    any other, and an interrupted search chooses what an uninterrupted one does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    candidates: int = Field(default=0, ge=0)
    learning_rates: tuple[float, float] = (1e-5, 1e-3)
    step_factors: tuple[float, ...] = Field(default=(1.0,), min_length=1)
    reduction: int = Field(default=3, ge=2)
    n_validation: int = Field(default=1000, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.learning_rates
        if not 0 < low <= high:
            raise ValueError(
                f"finetune.search.learning_rates={self.learning_rates}: give two bounds above 0, lower first"
            )
        if min(self.step_factors) <= 0:
            raise ValueError(f"finetune.search.step_factors={self.step_factors}: all must be above 0")
        if self.candidates == 1:
            raise ValueError(
                "finetune.search.candidates=1: give at least 2 to choose from, or 0 for no search"
            )
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


@dataclass(frozen=True)
class Round:
    """A round of a search and its candidates, some of them not finished. number counts from 1."""

    number: int
    of: int
    cells: list[Candidate]


def search(
    preset: Preset, ledger: Ledger, left_out: Collection[str] = (), failed: Collection[str] = ()
) -> tuple[Preset, Round | None]:
    """The preset with what its search chose; or, until it has, the preset as it is and the round to finish.

    The rounds are replayed from the ledger: so a search goes on where an earlier sweep left it, and one that
    is done costs a query. left_out: fingerprints of cells that cannot be done here. failed: of those given
    up; the search goes on without a candidate that is one or builds on one.
    """
    settings = preset.finetune.search
    if not settings.candidates or preset.finetune.chosen:
        return preset, None
    groups = {
        (model_name(cell), cell.task)
        for cell in with_ancestors(preset.cells())
        if _is_searched(cell) and cell.fingerprint not in left_out
    }
    if not groups:
        return preset, None
    runs = {record.fingerprint: record.metrics for record in ledger.records("candidate")}
    standing = {group: settings.draw(*group) for group in sorted(groups)}
    for i, share in enumerate(settings.shares):
        tried = preset.candidates(standing, share)
        cells = [cell for group in tried.values() for cell in group.values()]
        if any(cell.fingerprint not in runs and not _is_hopeless(cell, failed) for cell in cells):
            return preset, Round(i + 1, len(settings.shares), cells)
        scores = {
            group: {s: _exact_match(c, runs[c.fingerprint]) for s, c in of.items() if c.fingerprint in runs}
            for group, of in tried.items()
        }
        standing = {group: settings.keep(found) for group, found in scores.items() if found}
    chosen = tuple(
        Choice(
            model=model,
            task=task,
            **best.model_dump(),
            candidate=tried[model, task][best].fingerprint,
            exact_match=scores[model, task][best],
            n=settings.n_validation,
        )
        for (model, task), (best, *_) in standing.items()
    )
    return preset.model_copy(update={"finetune": preset.finetune.model_copy(update={"chosen": chosen})}), None


def without_setting(preset: Preset, cells: Iterable[Cell]) -> frozenset[str]:
    """Fingerprints of those cells whose search found no setting, as all its candidates failed."""
    if not preset.finetune.search.candidates:
        return frozenset()
    chosen = {(choice.model, choice.task) for choice in preset.finetune.chosen}
    return frozenset(
        cell.fingerprint
        for cell in cells
        for step in cell.lineage
        if _is_searched(step) and (model_name(step), step.task) not in chosen
    )


def _is_searched(cell: Cell) -> TypeGuard[Finetune]:
    """Whether a search is for cells as this one, and so for what builds on it: the first of a chain."""
    return isinstance(cell, Finetune) and cell.base is cell.root


def _is_hopeless(cell: Cell, failed: Collection[str]) -> bool:
    return any(step.fingerprint in failed for step in cell.lineage)


def _exact_match(cell: Candidate, metrics: Mapping[str, float]) -> float:
    return metrics[f"exact_match/{cell.train_length}"]
