"""One sweep: what of a preset is missing, round by round, until there is nothing left to do.

Ray and torch are loaded when something is to be run, so that a plan, a mistake or a finished sweep is quick.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from metatok.experiment import Cell, Home, Ledger, Preset, Published
from metatok.experiment.design import distinct_inputs, unreachable, with_ancestors
from metatok.experiment.inputs import Inputs
from metatok.experiment.ledger.search import search, without_setting
from sweeps.engine.plan_view import print_plan, print_search


def run_sweep(preset: Preset, home: Home, dry_run: bool = False) -> int:
    """Do what of the preset is missing in the ledger. Returns the exit code: 1 if a cell failed.

    Errors: ConfigError, before any work starts. KeyboardInterrupt, after the summary.
    """
    ledger = Ledger.open(home)
    fetched = [cell for cell in with_ancestors(preset.cells()) if isinstance(cell.lineage[0], Published)]
    left_out, why = unreachable(ledger.missing(fetched))
    if left_out:
        print(why, flush=True)
    given_up: set[str] = set()  # what failed or was skipped, in any round
    with ExitStack() as at_end:
        while True:
            preset, round_ = search(preset, ledger, left_out, given_up)
            planned = preset.cells() if round_ is None else round_.cells
            if dry_run and round_ is not None:
                planned = [*planned, *preset.cells()]
            wanted = with_ancestors(planned)
            cells = [cell for cell in wanted if cell.fingerprint not in left_out]
            print_search(preset, round_, dry_run)
            if round_ is None and (undecided := without_setting(preset, cells)):
                print(
                    f"{len(undecided)} cells are left out: of their search no candidate finished.", flush=True
                )
                cells = [cell for cell in cells if cell.fingerprint not in undecided]
            given_up |= _run_missing(preset, cells, home, ledger, given_up, dry_run, at_end)
            if round_ is None or dry_run:
                return 1 if given_up else 0


def _run_missing(
    preset: Preset,
    cells: Sequence[Cell],
    home: Home,
    ledger: Ledger,
    given_up: Collection[str],
    dry_run: bool,
    at_end: ExitStack,
) -> set[str]:
    """Do what is missing of the cells; errors as of run_sweep. Ray, once started, is shut down at the end.

    Returns the fingerprints of the cells that failed or were skipped.
    """
    missing = ledger.missing(cells)
    print_plan(preset, home, cells, missing)
    if dry_run:
        return set()
    if not missing:
        print("Nothing to do: every cell is finished.")
        return set()
    Inputs(home.datasets).check(distinct_inputs(missing))
    from sweeps.engine import tuning

    at_end.callback(tuning.ray.shutdown)
    return tuning.run_missing(preset, home, ledger, missing, given_up)
