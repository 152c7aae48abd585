"""What a person sees: progress during, a summary after."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from ray import tune
from rich.live import Live

from metatok.experiment import Home, Ledger
from metatok.experiment.ledger.standing import Standing, Turn
from sweeps.engine.graph import Graph
from sweeps.engine.plan_view import console

LINE_SECONDS = 30.0
TABLE_SECONDS = 0.5


def print_summary(graph: Graph, ledger: Ledger, home: Home) -> None:
    """How it went, what failed, and how to go on."""
    console.print(
        f"Finished {len(graph.finished)} of {len(graph.cells)} cells; "
        f"{len(graph.failed)} failed, {len(graph.skipped)} skipped."
    )
    runs = ledger.runs(graph.failed)
    for cell in graph.cells:
        if cell.fingerprint in graph.failed:
            run = runs.get(cell.fingerprint)
            error = run.tags.get("error", "its process died") if run is not None else "its process died"
            console.print(f"  failed   {cell.kind} {cell.slug} ({cell.id}): {error}", markup=False)
        elif cell.fingerprint in graph.skipped:
            console.print(f"  skipped  {cell.kind} {cell.slug} ({cell.id}): its base failed", markup=False)
    if graph.failed:
        console.print("Tracebacks are in the runs' artifacts. The same command again retries what failed.")
    console.print(f"Look:    {home.ledger_view}", soft_wrap=True)
    console.print("Report:  python reports/build_tables.py")


class ProgressView(tune.Callback):
    """Live table in a terminal; elsewhere a line every 30 s."""

    def __init__(self, graph: Graph, name: str):
        self._graph = graph
        self._name = name
        self._start = self._shown = time.monotonic()
        self._live: Live | None = None
        self._cells = {cell.fingerprint: cell for cell in graph.cells}
        self._turns: dict[str, Turn] = {}  # fingerprint -> its last one
        self._at: dict[str, tuple[float, str]] = {}  # trial id -> when its cell began, and which it was last
        self._halved: set[str] = set()  # those told
        self._ended: dict[str, str] = {}  # fingerprint -> status, ahead of the trial's own end

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._live = Live(self._standing().table(), console=console, refresh_per_second=2)
            self._live.start()
        else:
            print(self._standing().line(), flush=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._show()
        if self._live is not None:
            self._live.stop()

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        if "fingerprint" not in result:
            return
        key, now = result["fingerprint"], time.monotonic()
        # A short cell may tell of its end alone; it began when the one before it in the trial ended.
        start, _ = self._at.get(trial.trial_id, (now, key))
        ended = result["status"] != "running"
        self._turns[key] = Turn(
            start, now if ended else None, result["step"], result["loss"], result["tokens_per_second"]
        )
        self._at[trial.trial_id] = (now if ended else start, key)
        if ended:
            self._ended[key] = result["status"]
        if result["status"] == "already_finished":  # by another process, in its own time
            del self._turns[key]
        if result["status"] == "failed":
            cell = self._cells[key]
            console.print(f"failed: {cell.kind} {cell.slug}: {result['error']}", markup=False)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        _, key = self._at.pop(trial.trial_id, (0.0, ""))
        if key in self._turns and self._turns[key].end is None:  # its process died
            del self._turns[key]

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.on_trial_complete(iteration, trials, trial)

    def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
        for key in self._graph.halved - self._halved:
            cell = self._cells[key]
            console.print(
                f"out of GPU memory: {cell.kind} {cell.slug}; once more at half the micro-batch", markup=False
            )
        self._halved |= self._graph.halved
        if time.monotonic() - self._shown > (LINE_SECONDS if self._live is None else TABLE_SECONDS):
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        if self._live is not None:
            self._live.update(self._standing().table())
        else:
            print(self._standing().line(), flush=True)

    def _standing(self) -> Standing:
        done = {key for key, status in self._ended.items() if status in ("finished", "already_finished")}
        return Standing(
            self._name,
            self._graph.cells,
            finished=self._graph.finished | done,
            failed=self._graph.failed | self._graph.skipped,
            turns=self._turns,
            since=self._start,
            now=time.monotonic(),
        )
