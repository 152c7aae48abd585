"""What a person sees: the plan before, progress during, a summary after."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from ray import tune
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from metatok.experiment import Cell, Home, Ledger, Preset
from metatok.experiment.plan import STAGES, Cost, cost, stage_of
from sweeps.graph import Graph

LINE_SECONDS = 30.0

console = Console(highlight=False)


def print_plan(preset: Preset, home: Home, cells: Sequence[Cell], missing: Sequence[Cell]) -> None:
    """A row a stage: cells, how many are to do, and what those cost."""
    todo = {cell.fingerprint for cell in missing}
    table = Table(title=f"Sweep {preset.name}", title_justify="left")
    table.add_column("stage")
    for name in ("cells", "done", "to do", "tokens", "FLOPs", "A100 hours", "weights"):
        table.add_column(name, justify="right")
    total, counts = Cost(), Counter[str]()
    for stage in STAGES:
        members = [cell for cell in cells if stage_of(cell) == stage]
        if not members:
            continue
        open_cells = [cell for cell in members if cell.fingerprint in todo]
        costs = sum((cost(cell) for cell in open_cells), Cost())
        total += costs
        counts.update(cells=len(members), todo=len(open_cells))
        table.add_row(stage, *_plan_row(len(members), len(open_cells), costs))
    table.add_section()
    table.add_row("all", *_plan_row(counts["cells"], counts["todo"], total))
    console.print(table)
    console.print(f"Home {home.root}. A100 hours assume bf16 at 40% of peak; lengths are upper bounds.")


def _plan_row(cells: int, todo: int, costs: Cost) -> list[str]:
    return [
        str(cells),
        str(cells - todo),
        str(todo),
        _si(costs.tokens),
        f"{costs.flops:.1e}",
        f"{costs.gpu_hours:.1f}" if costs.gpu_hours >= 0.05 else "<0.1",
        f"{_si(costs.disk)}B",
    ]


def _si(value: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or unit == "T":
            break
        value /= 1000
    return f"{value:.3g}{unit}"


def print_summary(graph: Graph, ledger: Ledger, home: Home) -> None:
    """How it went, what failed, and how to go on."""
    console.print(
        f"Finished {len(graph.finished)} of {len(graph.cells)} cells; "
        f"{len(graph.failed)} failed, {len(graph.skipped)} skipped."
    )
    errors = ledger.errors(graph.failed)
    for cell in graph.cells:
        if cell.fingerprint in graph.failed:
            error = errors.get(cell.fingerprint, "its process died")
            console.print(f"  failed   {cell.kind} {cell.slug} ({cell.id}): {error}", markup=False)
        elif cell.fingerprint in graph.skipped:
            console.print(f"  skipped  {cell.kind} {cell.slug} ({cell.id}): its base failed", markup=False)
    if graph.failed:
        console.print("Tracebacks are in the runs' artifacts. The same command again retries what failed.")
    console.print(f"Look:    mlflow ui --backend-store-uri {home.tracking_uri}")
    console.print("Report:  python reports/build_tables.py")


class ProgressView(tune.Callback):
    """Live table in a terminal; elsewhere a line every 30 s."""

    def __init__(self, graph: Graph, name: str):
        self._graph = graph
        self._name = name
        self._start = time.monotonic()
        self._line_at = self._start
        self._news: dict[str, dict[str, Any]] = {}  # trial id -> its last result
        self._live: Live | None = None
        self._cells = {cell.fingerprint: cell for cell in graph.cells}
        self._ended: dict[str, str] = {}  # fingerprint -> status, ahead of the trial's own end

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._live = Live(self._table(), console=console, refresh_per_second=2)
            self._live.start()
        else:
            print(self._line(), flush=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self._table())
            self._live.stop()
        else:
            print(self._line(), flush=True)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        if "fingerprint" not in result:
            return
        self._news[trial.trial_id] = result
        if result["status"] != "running":
            self._ended[result["fingerprint"]] = result["status"]
        if result["status"] == "failed":
            cell = self._cells[result["fingerprint"]]
            console.print(f"failed: {cell.kind} {cell.slug}: {result['error']}", markup=False)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._news.pop(trial.trial_id, None)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._news.pop(trial.trial_id, None)

    def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
        if self._live is not None:
            self._live.update(self._table())
        elif time.monotonic() - self._line_at > LINE_SECONDS:
            self._line_at = time.monotonic()
            print(self._line(), flush=True)

    def _done(self) -> dict[str, Counter[str]]:
        """stage -> counts of cells, finished, failed."""
        counts: dict[str, Counter[str]] = {}
        for key, cell in self._cells.items():
            counter = counts.setdefault(stage_of(cell), Counter())
            counter["cells"] += 1
            ended = self._ended.get(key, "")
            counter["finished"] += key in self._graph.finished or ended in ("finished", "already_finished")
            counter["failed"] += key in self._graph.failed | self._graph.skipped
        return counts

    def _eta(self, counts: dict[str, Counter[str]]) -> str:
        """From the FLOPs done so far, which cells' start-up makes a rough guess."""
        done = sum(
            cost(c).flops for k, c in self._cells.items() if k in self._graph.finished or k in self._ended
        )
        total = sum(cost(cell).flops for cell in self._cells.values())
        elapsed = time.monotonic() - self._start
        return _clock(elapsed * (total / done - 1)) if done else "?"

    def _line(self) -> str:
        counts = self._done()
        stages = ", ".join(
            f"{s} {counts[s]['finished']}/{counts[s]['cells']}"
            + (f" ({counts[s]['failed']} failed)" if counts[s]["failed"] else "")
            for s in STAGES
            if s in counts
        )
        now = "; ".join(_describe(self._cells[n["fingerprint"]], n) for n in self._news.values())
        elapsed = _clock(time.monotonic() - self._start)
        return f"[{elapsed}] {stages}; ETA {self._eta(counts)}" + (f" | {now}" if now else "")

    def _table(self) -> Group:
        counts = self._done()
        table = Table(title=f"Sweep {self._name}", title_justify="left")
        for name in ("stage", "done", "failed"):
            table.add_column(name, justify="left" if name == "stage" else "right")
        for stage in STAGES:
            if stage in counts:
                c = counts[stage]
                table.add_row(stage, f"{c['finished']}/{c['cells']}", str(c["failed"] or ""))
        running = [Text(_describe(self._cells[n["fingerprint"]], n)) for n in self._news.values()]
        elapsed = _clock(time.monotonic() - self._start)
        return Group(table, *running, Text(f"elapsed {elapsed}, ETA {self._eta(counts)}"))


def _describe(cell: Cell, news: dict[str, Any]) -> str:
    text = f"{cell.kind} {cell.slug}"
    if steps := getattr(cell, "steps", None):
        text += f" step {news['step']}/{steps}"
    if news.get("loss") is not None:
        text += f" loss {news['loss']:.3f} {_si(news['tokens_per_second'])} tok/s"
    return text


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
