"""The paper's own numbers, from paper_reference.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

REFERENCE = Path(__file__).with_name("paper_reference.csv")
# Parameters of the paper's models: GPT-2 small, with meta-attention, and GPT-Neo.
_PAPER_SIZES = {"gpt2": "124M", "meta": "152M", "gpt": "125M"}
COORDINATES = ("model", "task", "train_length", "eval_length", "setting", "metric")


class PaperValue(NamedTuple):
    """value: as the paper prints it. origin: where it stands and how sure the reading is. scale: the size of
    the paper's model and of the one beside it, without which the two numbers say nothing about each other.
    """

    value: str
    exhibit: str
    origin: str
    scale: str


@dataclass(frozen=True)
class PaperBlock:
    """The paper's values for one exhibit, as a table of strings, with their origin.

    spanner: heading over the columns after the first `labels`.
    """

    frame: pd.DataFrame
    labels: int
    spanner: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """frame: the columns of paper_reference.csv, all as strings. ours: model -> parameters of what stands
    beside it."""

    frame: pd.DataFrame
    ours: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = REFERENCE) -> Reference:
        return cls(pd.read_csv(path, dtype=str, keep_default_na=False))

    def beside(self, ours: Mapping[str, int]) -> Reference:
        """The same numbers, to stand beside models of these sizes."""
        return Reference(self.frame, ours)

    def scale(self, model: str) -> str:
        """152M parameters, ours 0.22M."""
        here = self.ours.get(model)
        ours = f"ours {millions(here)}" if here else "ours not counted"
        return f"{_PAPER_SIZES.get(model.split('_')[0], '152M')} parameters, {ours}"

    @cached_property
    def _by_coordinates(self) -> dict[tuple[str, ...], list[PaperValue]]:
        found: dict[tuple[str, ...], list[PaperValue]] = {}
        for row in self.frame.to_dict("records"):
            origin = f"{row['source']}; {row['note']}" if row["note"] else row["source"]
            value = PaperValue(row["value"], row["exhibit"], origin, self.scale(row["model"]))
            found.setdefault(tuple(row[name] for name in COORDINATES), []).append(value)
        return found

    def at(
        self,
        model: str,
        task: str,
        train_length: int,
        eval_length: int,
        setting: str,
        metric: str,
        prefer: str = "",
    ) -> PaperValue | None:
        """The paper's number at exactly these coordinates; from exhibit `prefer` where several have one."""
        key = (model, task, str(train_length), str(eval_length), setting, metric)
        found = self._by_coordinates.get(key, [])
        return min(found, key=lambda value: value.exhibit != prefer, default=None)

    def block(self, exhibit: str, columns: str = "", task: str = "") -> PaperBlock | None:
        """All rows of an exhibit, of one task if given, with `columns` spread over the table's columns."""
        rows = self.frame[self.frame.exhibit == exhibit]
        rows = rows[rows.task == task] if task else rows
        if rows.empty:
            return None
        notes = tuple(f"{s}: {n}" if n else s for s, n in _distinct(rows[["source", "note"]]))
        # What a spread column says of itself needs no column of its own.
        told = {"setting": {"metric", "unit"}, "metric": {"unit"}}.get(columns, set()) | {columns}
        keys = [c for c in (*COORDINATES, "unit") if c not in told and (rows[c] != "").any()]
        if not columns:
            return PaperBlock(_plain(rows[[*keys, "value"]]), len(keys), "", notes)
        constant = [c for c in ("setting", "metric", "unit") if c in keys and rows[c].nunique() == 1]
        spanner = ", ".join([_words(columns), *(_words(rows[c].iloc[0]) for c in constant)])
        keys = [c for c in keys if c not in constant]
        return PaperBlock(_spread(rows, keys, columns), len(keys), spanner, notes)


def millions(parameters: int) -> str:
    """152M, 0.22M, 9,500."""
    return f"{parameters / 1e6:.3g}M" if parameters >= 10_000 else f"{parameters:,}"


def _distinct(frame: pd.DataFrame) -> Sequence[tuple[str, str]]:
    kept = frame.drop_duplicates()
    noted = set(kept.source[kept.note != ""])
    return [(s, n) for s, n in kept.itertuples(index=False) if n or s not in noted]


def _spread(rows: pd.DataFrame, keys: list[str], columns: str) -> pd.DataFrame:
    """A row for each combination of `keys`, the values of `columns` side by side."""
    order = list(dict.fromkeys(rows[columns]))
    wide = rows.pivot_table(index=keys, columns=columns, values="value", aggfunc="first", sort=False)
    wide.columns.name = None
    return _plain(wide[order].fillna("—").reset_index())


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename(columns=_words).reset_index(drop=True)


def _words(name: str) -> str:
    return name.replace("_", " ")
