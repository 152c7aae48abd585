"""The order of work: which trials may start, as their bases finish or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.tune.search import Searcher

from metatok.experiment import Cell, Efficiency, Ledger
from metatok.experiment.plan import Trial, trials
from metatok.experiment.run import OUT_OF_MEMORY


def _alone(trial: Trial) -> bool:
    """Whether nothing may run beside a trial: measurements of speed."""
    return isinstance(trial.cells[0], Efficiency)


class Graph(Searcher):
    """A Tune search algorithm that suggests trials whose bases are finished, until all cells are settled.

    What became of a trial's cells is read from the ledger, whatever way the trial ended: a cell that did not
    finish is tried again up to `max_retries` times, one that builds on a failed cell is skipped.
    """

    def __init__(self, cells: Sequence[Cell], ledger: Ledger, share_trainer: bool, max_retries: int):
        """cells: those still to do, bases first."""
        super().__init__(metric="step", mode="max")
        self.cells = list(cells)
        self.ledger = ledger
        self.share_trainer = share_trainer
        self.max_retries = max_retries
        self.pending = {cell.fingerprint: cell for cell in cells}
        self.running: dict[str, Trial] = {}
        self.finished: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.attempts: Counter[str] = Counter()
        self.halved: set[str] = set()  # out of memory once
        self._index = {cell.fingerprint: i for i, cell in enumerate(self.cells)}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial that can start; None while all wait for running ones; FINISHED at the end."""
        self._skip_hopeless()
        unfinished = {cell.fingerprint for cell in self.cells} - self.finished
        # What runs alone comes last, when all else is settled and nothing can join it; earlier it would hold
        # up the trainer, which is long in starting.
        for trial in sorted(trials(list(self.pending.values()), self.share_trainer), key=_alone):
            if trial.needs & unfinished or (_alone(trial) and self.running):
                continue
            self.running[trial_id] = trial
            for cell in trial.cells:
                del self.pending[cell.fingerprint]
            indices = ",".join(str(self._index[cell.fingerprint]) for cell in trial.cells)
            return {"cells": indices, "distributed": trial.distributed}
        if not self.pending and not self.running:
            return Searcher.FINISHED
        assert self.running, "cells wait for one another"
        return None

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        cells = self.running.pop(trial_id).cells
        statuses = self.ledger.statuses(cell.fingerprint for cell in cells)
        unfinished = [cell for cell in cells if statuses.get(cell.fingerprint) != "FINISHED"]
        self.finished |= {cell.fingerprint for cell in cells} - {cell.fingerprint for cell in unfinished}
        # What failed has had its turn; if nothing did, the process died in the first cell that is not done.
        blamed = [cell for cell in unfinished if statuses.get(cell.fingerprint) == "FAILED"] or unfinished[:1]
        for cell in blamed:
            self.attempts[cell.fingerprint] += 1
        self._spare_out_of_memory(blamed)
        for cell in unfinished:
            if self.attempts[cell.fingerprint] > self.max_retries:
                self.failed.add(cell.fingerprint)
        again = self.pending.keys() | {cell.fingerprint for cell in unfinished} - self.failed
        self.pending = {cell.fingerprint: cell for cell in self.cells if cell.fingerprint in again}

    def _spare_out_of_memory(self, blamed: Sequence[Cell]) -> None:
        """What ran out of GPU memory is tried once more at half the micro-batch, whatever max_retries is."""
        times = self.ledger.tags((cell.fingerprint for cell in blamed), OUT_OF_MEMORY)
        for cell in blamed:
            key = cell.fingerprint
            if times.get(key) == "once" and key not in self.halved:
                self.halved.add(key)
                self.attempts[key] -= 1
            elif times.get(key) == "twice":
                self.attempts[key] = self.max_retries + 1

    @property
    def settled(self) -> bool:
        """Whether every cell is finished, failed or skipped."""
        return not self.pending and not self.running

    def _skip_hopeless(self) -> None:
        for key, cell in list(self.pending.items()):  # bases first, so one pass settles chains
            if any(parent.fingerprint in self.failed | self.skipped for parent in cell.parents):
                self.skipped.add(key)
                del self.pending[key]

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the ledger knows what is done."""

    def restore(self, checkpoint_path: str) -> None:
        """Never restored: a new sweep asks the ledger."""
        raise AssertionError("a sweep is resumed from the ledger, not from Tune's state")
