"""All exhibits of a ledger, written to a folder and to one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metatok.errors import ConfigError
from metatok.experiment import Home, Ledger, Preset
from reports.exhibits.accuracy import accuracy_tables
from reports.exhibits.claims import claims, verdict_counts
from reports.exhibits.controls import controls
from reports.exhibits.exhibit import Exhibit, scale_text
from reports.exhibits.figures import figures
from reports.exhibits.gains import no_pos
from reports.exhibits.grid import TASKS
from reports.exhibits.settings import settings_tables
from reports.exhibits.steps import steps_to_90
from reports.rendering.render import write_all
from reports.source.comparisons import control_cells
from reports.source.provenance import provenance
from reports.source.results import Results
from reports.source.runs import select
from reports.source.scores import score_table
from reports.verdict import Verdict

SCORES = "scores.csv"


@dataclass(frozen=True)
class Report:
    """What was written. page: report.html. verdicts: how many claims came to which."""

    page: Path
    results: Results
    exhibits: list[Exhibit]
    verdicts: dict[Verdict, int]


def build_report(
    home: Home, out: Path | None = None, preset: str | None = None, expected: Preset | None = None
) -> Report:
    """Write all exhibits of the home's ledger. `preset` and `expected` as in `reports.source.runs.select`.

    Errors: ConfigError if there is no ledger, or on an unknown preset.
    """
    ledger = Ledger.open(home)
    results = Results(ledger, select(ledger, preset, expected))
    name = results.selection.preset
    cells = control_cells(results, TASKS)
    tables = [*accuracy_tables(results), no_pos(results, 2), *settings_tables(results), no_pos(results, 17)]
    tables.sort(key=lambda exhibit: exhibit.name)
    exhibits = [
        claims(results, cells),
        *tables,
        *figures(results),
        controls(results, cells),
        steps_to_90(results),
    ]
    for exhibit in exhibits:
        if not exhibit.runs and not exhibit.missing:
            exhibit.missing = [f"no cell of it is in the ledger, and none is expected of preset {name}"]
        if exhibit.paper is not None or exhibit.has_paper_beside:
            exhibit.caption += f" {scale_text(results)}"
    folder = (out or home.root / "report").expanduser().absolute()
    try:
        page = write_all(exhibits, provenance(results), folder)
        score_table(results).to_csv(folder / SCORES, index=False)
    except OSError as error:
        raise ConfigError(
            f"out={folder} cannot be written ({error.strerror}); give a folder of yours"
        ) from None
    return Report(page, results, exhibits, verdict_counts(exhibits[0]))
