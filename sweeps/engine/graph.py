"""The order of work: which trials may start, as their bases finish or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from metatok.experiment import Cell, Ledger
from metatok.experiment.design import Trial, trials
from metatok.experiment.ledger.index import RunSummary
from metatok.experiment.ledger.run import DIVERGED, OUT_OF_MEMORY

LATEST = ("once", "twice")  # of OUT_OF_MEMORY: the latest attempt was one that ran out


def _alone(trial: Trial) -> bool:
    """Whether nothing may run beside a trial: measurements of speed."""
    return trial.cells[0].alone


def _trial(run: RunSummary | None) -> str | None:
    """The id of the trial that had the run last."""
    return None if run is None else run.tags.get("trial")


class Graph(Searcher):
    """A Tune search algorithm that suggests trials whose bases are finished, until all cells are settled.

    What became of a trial's cells is read from the ledger, whatever way the trial ended: a cell that did not
    finish is tried again up to `max_retries` times, one that builds on a failed cell is skipped.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        ledger: Ledger,
        share_trainer: bool,
        max_retries: int,
        given_up: Collection[str] = (),
    ):
        """cells: those still to do, bases first. given_up: fingerprints of cells that are not tried again."""
        super().__init__(metric="step", mode="max")
        self.cells = list(cells)
        self.ledger = ledger
        self.share_trainer = share_trainer
        self.max_retries = max_retries
        self.running: dict[str, Trial] = {}
        self.finished: set[str] = set()
        self.failed = {cell.fingerprint for cell in cells if cell.fingerprint in given_up}
        self.skipped: set[str] = set()
        self.attempts: Counter[str] = Counter()
        self.halved: set[str] = set()  # out of memory once
        self.pending = {cell.fingerprint: cell for cell in cells if cell.fingerprint not in self.failed}
        self._skip_hopeless()
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
            return {"cells": indices, "distributed": trial.distributed, "trial": trial_id}
        if not self.pending and not self.running:
            return Searcher.FINISHED
        assert self.running, "cells wait for one another"
        return None

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        cells = self.running.pop(trial_id).cells
        runs = self.ledger.runs(cell.fingerprint for cell in cells)
        done = {key for key, run in runs.items() if run.status == "FINISHED"}
        self.finished |= done
        unfinished = [cell.fingerprint for cell in cells if cell.fingerprint not in done]
        # A run may be as an earlier trial left it.
        begun = {key: runs[key] for key in unfinished if _trial(runs.get(key)) == trial_id}
        ran_out = {
            key: times for key, run in begun.items() if (times := run.tags.get(OUT_OF_MEMORY)) in LATEST
        }
        # What failed has had its turn; if nothing did, the process died in the first cell that is not done.
        failed = [key for key, run in begun.items() if run.status == "FAILED" or key in ran_out]
        self.attempts.update(failed or unfinished[:1])
        self._spare_out_of_memory(ran_out)
        for key, run in begun.items():
            if DIVERGED in run.tags:  # as it would again
                self.attempts[key] = self.max_retries + 1
        self.failed |= {key for key in unfinished if self.attempts[key] > self.max_retries}
        again = self.pending.keys() | set(unfinished) - self.failed
        self.pending = {cell.fingerprint: cell for cell in self.cells if cell.fingerprint in again}

    def _spare_out_of_memory(self, ran_out: Mapping[str, str]) -> None:
        """What ran out of GPU memory is tried once more at half the micro-batch, whatever max_retries is."""
        for key, times in ran_out.items():
            if times == "twice":
                self.attempts[key] = self.max_retries + 1
            elif key not in self.halved:
                self.halved.add(key)
                self.attempts[key] -= 1

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
