"""The ledger as the paper's exhibits.

python reports/build_tables.py [--home PATH] [--out DIR] [--preset NAME]
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from metatok.errors import ConfigError
from metatok.experiment import Home, Ledger, Preset
from reports.accuracy_tables import accuracy_tables
from reports.exhibit import Exhibit
from reports.figures import figures
from reports.gain_tables import no_pos
from reports.provenance import provenance
from reports.render import write_all
from reports.results import Results
from reports.settings_tables import settings_tables
from reports.source import select


@dataclass(frozen=True)
class Report:
    """What was written. page: report.html."""

    page: Path
    results: Results
    exhibits: list[Exhibit]


@dataclass(frozen=True)
class Options:
    """Write Tables 1-17 (md, csv, tex), Figures 1-3 (png, svg) and report.html from the ledger.

    home: where the ledger lies; default $METATOK_HOME, else ~/.metatok.
    out: folder to write to; default report/ in home.
    preset: whose runs to report; default that of the newest run.
    """

    home: Path | None = None
    out: Path | None = None
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None


def build_report(
    home: Home, out: Path | None = None, preset: str | None = None, expected: Preset | None = None
) -> Report:
    """Write all exhibits of the home's ledger. `preset` and `expected` as in `reports.source.select`.

    Errors: ConfigError if there is no ledger, or on an unknown preset.
    """
    ledger = Ledger.open(home)
    results = Results(ledger, select(ledger, preset, expected))
    name = results.selection.preset
    tables = [*accuracy_tables(results), no_pos(results, 2), *settings_tables(results), no_pos(results, 17)]
    exhibits = [*sorted(tables, key=lambda exhibit: exhibit.name), *figures(results)]
    for exhibit in exhibits:
        if not exhibit.runs and not exhibit.missing:
            exhibit.missing = [f"no cell of it is in the ledger, and none is expected of preset {name}"]
    folder = (out or home.root / "report").expanduser().absolute()
    try:
        page = write_all(exhibits, provenance(results), folder)
    except OSError as error:
        raise ConfigError(
            f"out={folder} cannot be written ({error.strerror}); give a folder of yours"
        ) from None
    return Report(page, results, exhibits)


def main() -> None:
    """Entry point of the script. Exits 0, or 2 on a user's mistake."""
    options = tyro.cli(Options)
    try:
        report = build_report(_existing_home(options.home), options.out, options.preset)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    _tell(report)


def _existing_home(path: Path | None) -> Home:
    """The home, which must have a ledger: a report must not make an empty one at a mistyped path."""
    home = Home(
        Path(path or os.environ.get("METATOK_HOME") or Path.home() / ".metatok").expanduser().absolute()
    )
    uri = home.tracking_uri
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise ConfigError(
            f"no ledger at {uri.removeprefix('sqlite:///')}; run sweeps/full_paper.py first, or give --home "
            "or METATOK_HOME"
        )
    return Home.open(home.root)


def _tell(report: Report) -> None:
    selection, shown = report.results.selection, report.results.shown
    if shown.empty:
        print(
            f"No finished run of preset {selection.preset} in the ledger: every exhibit says what is missing."
        )
    else:
        complete = sum(not exhibit.missing for exhibit in report.exhibits)
        print(f"{len(shown)} runs of preset {selection.preset}.")
        print(f"{complete} of {len(report.exhibits)} exhibits are complete.")
    print(f"Report: {report.page}")


if __name__ == "__main__":
    main()
