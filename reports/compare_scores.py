"""Two reports' scores, compared.

python reports/compare_scores.py A/scores.csv B/scores.csv [--tolerance X]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from metatok.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from reports.source.scores import Differences

_SHOWN = 20  # rows of each kind of difference


@dataclass(frozen=True)
class Options:
    """Say what differs between two reports' scores. Exits 0 if nothing does, 1 if something, 2 on a mistake.

    first, second: scores.csv of two reports. tolerance: a value moved by no more counts as equal.
    """

    first: Annotated[Path, tyro.conf.Positional]
    second: Annotated[Path, tyro.conf.Positional]
    tolerance: float = 0.0


def main() -> None:
    """Entry point of the script."""
    options = tyro.cli(Options)
    from reports.source.scores import differences, read_scores  # MLflow and pandas take seconds

    try:
        found = differences(read_scores(options.first), read_scores(options.second), options.tolerance)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    _tell(found)
    sys.exit(1 if found.any else 0)


def _tell(found: Differences) -> None:
    for name, rows in (("first", found.only_first), ("second", found.only_second)):
        if len(rows):
            print(f"{len(rows)} scores only in the {name}:")
            _list(rows, lambda row: "")
    if len(found.moved):
        largest = found.moved.change.abs().max()
        print(f"{len(found.moved)} scores differ, by up to {largest:.6g}:")
        _list(found.moved.sort_values("change", key=abs, ascending=False), _move)
    print(f"{found.equal} scores are equal.")
    if found.other_runs:
        print(f"Of these, {found.other_runs} come from cells of different fingerprints.")


def _list(rows: pd.DataFrame, tail) -> None:
    from reports.source.scores import PLACE

    for row in rows.head(_SHOWN).to_dict("records"):
        print(
            "  "
            + " ".join(str(row[name]) for name in PLACE if str(row[name]) not in ("", "<NA>"))
            + tail(row)
        )
    if len(rows) > _SHOWN:
        print(f"  and {len(rows) - _SHOWN} more")


def _move(row: dict) -> str:
    n = "" if row["n_first"] == row["n_second"] else f", n {row['n_first']:g} -> {row['n_second']:g}"
    return f": {row['value_first']:.6g} -> {row['value_second']:.6g} ({row['change']:+.6g}{n})"


if __name__ == "__main__":
    main()
