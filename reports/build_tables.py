"""The ledger as the paper's exhibits.

python reports/build_tables.py [--home PATH] [--out DIR] [--preset NAME]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from metatok.errors import ConfigError
from metatok.experiment import Home

if TYPE_CHECKING:
    from reports.report import Report


@dataclass(frozen=True)
class Options:
    """Write the claims page, Tables 1-17 and more (md, csv, tex), Figures 1-3 (png, svg), scores.csv and
    report.html from the ledger.

    home: where the ledger lies; default $METATOK_HOME, else ~/.metatok.
    out: folder to write to; default report/ in home.
    preset: whose runs to report; default that of the newest run.
    """

    home: Path | None = None
    out: Path | None = None
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None


def main() -> None:
    """Entry point of the script. Exits 0, or 2 on a user's mistake."""
    options = tyro.cli(Options)
    try:
        home = Home.existing(options.home)
        from reports.report import build_report  # MLflow, pandas and matplotlib take seconds

        report = build_report(home, options.out, options.preset)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    _tell(report)


def _tell(report: Report) -> None:
    selection, shown, troubled = report.results.selection, report.results.shown, report.results.troubled
    if shown.empty:
        print(
            f"No finished run of preset {selection.preset} in the ledger: every exhibit says what is missing."
        )
    else:
        complete = sum(not exhibit.missing for exhibit in report.exhibits)
        print(f"{len(shown)} runs of preset {selection.preset}.")
        print(f"{complete} of {len(report.exhibits)} exhibits are complete.")
    for state, n in troubled.state.value_counts().items():
        print(f"{n} runs {state}: nothing of theirs is shown as a number.")
    for verdict, n in report.verdicts.items():
        print(f"Claims {verdict}: {n}")
    print(f"Report: {report.page}")


if __name__ == "__main__":
    main()
