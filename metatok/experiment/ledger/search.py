"""How far a hyperparameter search is and what it chose, replayed from its candidates' runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from metatok.experiment.design import Candidate, Cell, Choice, Finetune, Preset, candidates, with_ancestors
from metatok.experiment.ledger.ledger import Ledger


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
        (cell.model_name, cell.task)
        for cell in with_ancestors(preset.cells())
        if _is_searched(cell) and cell.fingerprint not in left_out
    }
    if not groups:
        return preset, None
    runs = {record.fingerprint: record.metrics for record in ledger.records("candidate")}
    standing = {group: settings.draw(*group) for group in sorted(groups)}
    for i, share in enumerate(settings.shares):
        tried = candidates(preset, standing, share)
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
        if _is_searched(step) and (step.model_name, step.task) not in chosen
    )


def _is_searched(cell: Cell) -> TypeGuard[Finetune]:
    """Whether a search is for cells as this one, and so for what builds on it: the first of a chain."""
    return isinstance(cell, Finetune) and cell.base is cell.root


def _is_hopeless(cell: Cell, failed: Collection[str]) -> bool:
    return any(step.fingerprint in failed for step in cell.lineage)


def _exact_match(cell: Candidate, metrics: Mapping[str, float]) -> float:
    return metrics[f"exact_match/{cell.train_length}"]
