"""How a sweep stands, from the ledger alone, so that any shell can look on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from rich.console import Console
from rich.live import Live

from metatok.errors import ConfigError
from metatok.experiment.design import Preset, with_ancestors
from metatok.experiment.ledger.index import RunSummary, by_fingerprint
from metatok.experiment.ledger.ledger import Ledger, SweepRecord
from metatok.experiment.ledger.owner import owner_is_alive
from metatok.experiment.ledger.search import search, without_setting
from metatok.experiment.ledger.standing import Standing, Turn

WATCH_SECONDS = 5.0


def show_status(ledger: Ledger, preset: str | None, sweep: str | None, watch: bool) -> None:
    """Print how the chosen sweep stands: a table in a terminal, else a line; `watch`: until it has ended.

    Errors: ConfigError if no recorded sweep is of that preset or id.
    """
    chosen = choose_sweep(ledger.recorded_sweeps(), preset, sweep)
    with _screen() as show:
        while True:
            asked = time.monotonic()
            standing = standing_of(ledger, chosen)
            show(standing)
            if standing.settled or not watch:
                return
            # A server takes seconds to answer over thousands of runs, and has the sweep's lines to take too.
            time.sleep(max(WATCH_SECONDS, time.monotonic() - asked))


@contextmanager
def _screen() -> Iterator[Callable[[Standing], None]]:
    """Shows one standing after the other: in the same place of a terminal, else a line each."""
    if not sys.stdout.isatty():
        yield lambda standing: print(standing.line(), flush=True)
        return
    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        yield lambda standing: live.update(standing.table(), refresh=True)


def choose_sweep(recorded: list[SweepRecord], preset: str | None, sweep: str | None) -> SweepRecord:
    """The latest sweep, of that preset or with an id that starts so, if given."""
    chosen = [
        record
        for record in recorded
        if (preset is None or record.name == preset) and (sweep is None or record.id.startswith(sweep))
    ]
    if chosen:
        return chosen[-1]
    if not recorded:
        raise ConfigError("the ledger knows of no sweep; start one: python sweeps/full_paper.py")
    field = f"sweep={sweep!r}" if sweep is not None else f"preset={preset!r}"
    known = ", ".join(f"{record.id} ({record.name})" for record in recorded)
    raise ConfigError(f"{field}: no such sweep ran here, choose one of {known}")


def standing_of(ledger: Ledger, sweep: SweepRecord) -> Standing:
    """The sweep's cells as their runs say; while it searches hyperparameters, those of the search's round.

    A run whose owner is gone is still to do; what builds on a failed cell counts as failed.
    """
    runs = by_fingerprint(ledger.summaries())
    given_up = {key for key, run in runs.items() if run.status == "FAILED"}
    preset, unfinished = search(_preset(sweep), ledger, failed=given_up)
    cells = with_ancestors(preset.cells() if unfinished is None else unfinished.cells)
    own = {cell.fingerprint: runs[cell.fingerprint] for cell in cells if cell.fingerprint in runs}
    turns = {key: turn for key, run in own.items() if (turn := _turn(ledger, run)) is not None}
    failed = {key for key, run in own.items() if run.status == "FAILED"}
    if unfinished is None:
        failed |= without_setting(preset, cells)
    for cell in cells:
        if any(parent.fingerprint in failed for parent in cell.parents) and cell.fingerprint not in turns:
            failed.add(cell.fingerprint)
    running = any(turn.end is None for turn in turns.values())
    ends = [turn.end for turn in turns.values() if turn.end is not None]
    return Standing(
        f"{preset.name} ({sweep.id})",
        cells,
        finished={key for key, run in own.items() if run.status == "FINISHED"},
        failed=failed,
        turns=turns,
        since=sweep.time,
        now=time.time() if running else max([sweep.time, *ends]),
    )


def _turn(ledger: Ledger, run: RunSummary) -> Turn | None:
    """The time that a finished run took, or a running one takes; None for any other."""
    # A run that was taken up again after a crash has rested in between.
    start = float(run.tags.get("claimed", run.start_time / 1000))
    if run.status == "FINISHED" and run.end_time is not None:
        return Turn(start, max(start, run.end_time / 1000))
    if run.status != "RUNNING" or not owner_is_alive(run.tags):
        return None
    metrics = ledger.client.get_run(run.run_id).data.metrics
    steps = [point.step for point in ledger.client.get_metric_history(run.run_id, "loss")]
    return Turn(start, None, max(steps, default=0), metrics.get("loss"), metrics.get("tokens_per_second"))


def _preset(sweep: SweepRecord) -> Preset:
    try:
        return Preset.model_validate_json(sweep.preset)
    except ValidationError:
        raise ConfigError(
            f"sweep={sweep.id}: recorded by another version of metatok, which this one cannot read; "
            "choose another"
        ) from None
