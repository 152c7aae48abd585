"""From runs to numbers: one configuration a label, seeds pooled by examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from metatok.experiment import Cell, Ledger, RunRecord
from reports.source.choice import choose
from reports.source.paper import Reference
from reports.source.runs import LABELS, Selection, is_extended, table_of
from reports.stats import MARGIN, Estimate, clustered_share, mean_of_seeds, wilson


class Key(NamedTuple):
    """Where a score stands in a table."""

    model: str
    task: str
    train_length: int
    eval_length: int
    setting: str = "full"


@dataclass(frozen=True)
class Point:
    """One accuracy: all seeds' examples pooled, and the mean over seeds where there are several.

    lost: what became of further seeds, whose runs give no number: "1 seed diverged".
    """

    pooled: Estimate
    n: int
    seeds: int
    by_seed: Estimate
    fingerprints: tuple[str, ...]
    lost: str = ""


class BaseRate(NamedTuple):
    """The accuracy of the best constant answer, with its Wilson interval at the test set's n examples."""

    share: Estimate
    n: int


@dataclass
class Results:
    """What the exhibits are filled from.

    shown: the runs that count, at most one a seed and label. troubled: those of them that diverged or failed
    and give no number. left_out: runs at the same labels as these but of another configuration, with `why`.
    """

    ledger: Ledger
    selection: Selection
    reference: Reference = field(default_factory=Reference.load)

    def __post_init__(self) -> None:
        chosen, self.left_out = choose(self.selection.runs)
        self.shown, self.troubled = chosen[chosen.state == "done"], chosen[chosen.state != "done"]
        self.reference = self.reference.beside(self._parameters())
        self._tables: dict[tuple[str, str], pd.DataFrame | None] = {}
        self._examples: dict[str, dict[int, pd.DataFrame] | None] = {}

    def runs(self, kind: str, **labels: str) -> pd.DataFrame:
        """Shown runs of a kind with these labels."""
        return _where(self.shown, kind, labels)

    def known(self, kind: str, **labels: str) -> list[pd.DataFrame]:
        """All that is known of a kind at these labels: shown runs, troubled ones, the preset's cells."""
        return [_where(frame, kind, labels) for frame in (self.shown, self.troubled, self.selection.expected)]

    def expected(self, kind: str, **labels: str) -> pd.DataFrame:
        """The preset's cells of a kind with these labels."""
        return _where(self.selection.expected, kind, labels)

    def table(self, record: RunRecord, name: str) -> pd.DataFrame | None:
        """A run's artifact table, read once; None if it cannot be read."""
        key = (record.fingerprint, name)
        if key not in self._tables:
            self._tables[key] = table_of(self.ledger, record, name)
        return self._tables[key]

    def missing(self, kind: str, **labels: str) -> list[dict[str, str]]:
        """The cells of a kind that have no number, by their labels: the preset's that no shown run fills, and
        what diverged or failed, which `state` says.
        """
        done = set(_label_tuples(self.runs(kind, **labels)))
        trouble = _where(self.trouble, kind, labels)
        states = dict(zip(_label_tuples(trouble), trouble.state, strict=True))
        wanted = dict.fromkeys([*_label_tuples(self.expected(kind, **labels)), *states])
        return [
            {"kind": kind}
            | {n: v for n, v in zip(LABELS, values, strict=True) if v}
            | ({"state": states[values]} if values in states else {})
            for values in wanted
            if values not in done
        ]

    @cached_property
    def trouble(self) -> pd.DataFrame:
        """kind, state ("diverged", "failed") and LABELS of runs without a number, and of the preset's cells
        that have no run as they build on one of these."""
        states = dict(zip(self.troubled.fingerprint, self.troubled.state, strict=True))
        ran, cells = set(self.selection.runs.fingerprint), self.selection.expected
        inherited = [
            None if row.fingerprint in ran else _first_trouble(row.cell, states) for row in cells.itertuples()
        ]
        kept = cells.assign(state=pd.Series(inherited, cells.index, dtype=object)).dropna(subset="state")
        return pd.concat([self.troubled, kept])[["kind", "state", *LABELS]]

    def trouble_at(self, key: Key) -> str:
        """Why a coordinate has no number: "diverged", "failed", or "" if nothing of it ran."""
        return self._states_at.get(_without_eval_length(key), {}).get("state", "")

    @cached_property
    def _states_at(self) -> dict[tuple[Any, ...], dict[str, str]]:
        """Key without its eval length -> the gravest state there, and how many seeds are lost to which."""
        scored = self.trouble[self.trouble.kind.isin(["finetune", "ablate"])]
        where = [
            scored.model,
            scored.task,
            scored.train_length.astype(int),
            scored.setting.replace("", "full"),
        ]
        found = {}
        for place, states in scored.state.groupby(where):
            counts = states.value_counts().sort_index()  # "diverged" before "failed"
            lost = ", ".join(f"{n} seed{'s' * (n > 1)} {state}" for state, n in counts.items())
            found[place] = {"state": str(counts.index[0]), "lost": lost}
        return found

    @property
    def unreadable(self) -> list[str]:
        """Artifacts that were asked for and are gone or damaged, as fingerprint/name."""
        return [f"{fingerprint[:12]}/{name}" for (fingerprint, name), t in self._tables.items() if t is None]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row for each shown fine-tune or ablation and eval length: Key's fields, seed, n, correct,
        token_accuracy, majority_share, fingerprint, record."""
        rows = [
            row
            for kind in ("finetune", "ablate")
            for run in self.runs(kind).to_dict("records")
            for row in _score_rows(run)
        ]
        columns = [
            *Key._fields,
            "extended",
            "seed",
            "n",
            "correct",
            "majority_share",
            "fingerprint",
            "record",
        ]
        return pd.DataFrame(rows, columns=columns).astype({"extended": bool})

    @cached_property
    def exact(self) -> dict[Key, Point]:
        """Exact-match accuracy of every scored coordinate."""
        points: dict[Key, Point] = {}
        for key, rows in self.scores.groupby(list(Key._fields)):
            n = int(rows.n.sum())
            points[Key(*key)] = Point(
                wilson(int(rows.correct.sum()), n),
                n,
                rows.seed.nunique(),
                mean_of_seeds(rows.correct / rows.n),
                tuple(rows.fingerprint),
                self._lost(Key(*key)),
            )
        return points

    @cached_property
    def token(self) -> dict[Key, Point]:
        """Token accuracy of the extended models (Table 1), from the per-example records."""
        points: dict[Key, Point] = {}
        extended = self.scores[self.scores.extended & (self.scores.setting == "full")]
        for key, rows in extended.groupby(list(Key._fields)):
            tables = [self.examples(r.record, r.eval_length) for r in rows.itertuples()]
            if any(t is None for t in tables):
                continue
            both = pd.concat(tables)
            seeds = [t.correct_tokens.sum() / t.answer_tokens.sum() for t in tables]
            points[Key(*key)] = Point(
                clustered_share(both.correct_tokens, both.answer_tokens),
                len(both),
                len(seeds),
                mean_of_seeds(seeds),
                tuple(rows.fingerprint),
                self._lost(Key(*key)),
            )
        return points

    def _lost(self, key: Key) -> str:
        return self._states_at.get(_without_eval_length(key), {}).get("lost", "")

    def records_at(self, key: Key) -> dict[str, RunRecord]:
        """seed -> the run that scored a coordinate."""
        return self._records_at.get(key, {})

    @cached_property
    def _records_at(self) -> dict[Key, dict[str, RunRecord]]:
        found: dict[Key, dict[str, RunRecord]] = {}
        places = zip(*(self.scores[name] for name in Key._fields), strict=True)
        for place, seed, record in zip(places, self.scores.seed, self.scores.record, strict=True):
            found.setdefault(Key(*place), {})[seed] = record
        return found

    def examples(self, record: RunRecord, eval_length: int) -> pd.DataFrame | None:
        """The per-example records of one eval length, or None if they cannot be read."""
        if record.fingerprint not in self._examples:
            table = self.table(record, "records")
            readable = table is not None and "exact" in table
            self._examples[record.fingerprint] = (
                {int(n): t.set_index("index") for n, t in table.groupby("eval_length")} if readable else None
            )
        by_length = self._examples[record.fingerprint]
        return None if by_length is None else by_length.get(eval_length)

    def base_rate(self, task: str, eval_length: int, extended: bool = False) -> BaseRate | None:
        """The accuracy of the best constant answer on a test set, that of the extended models or the others';
        the largest where these differ among themselves.
        """
        return self._base_rates.get((task, eval_length, extended))

    def majority(self, task: str, eval_length: int, extended: bool = False) -> float | None:
        """The base rate as a share."""
        base = self.base_rate(task, eval_length, extended)
        return None if base is None else base.share.value

    @cached_property
    def _base_rates(self) -> dict[tuple[str, int, bool], BaseRate]:
        known = self.scores.dropna(subset="majority_share").sort_values("majority_share")
        last = known.groupby(["task", "eval_length", "extended"]).tail(1)
        return {
            (r.task, r.eval_length, r.extended): BaseRate(wilson(round(r.majority_share * r.n), r.n), r.n)
            for r in last.itertuples()
        }

    def standing(self, key: Key) -> str:
        """Where a score says nothing of the model; else "".

        "base rate": it cannot be told from the best constant answer, or is worse. "ceiling": within MARGIN of
        all right.
        """
        point, base = self.exact[key], self.base_rate(key.task, key.eval_length, is_extended(key.model))
        if base is not None and point.pooled.low <= base.share.high:
            return "base rate"
        return "ceiling" if point.pooled.value >= 1 - MARGIN else ""

    def tests_nothing(self, keys: Iterable[Key]) -> str:
        """The standing that all measured coordinates share: no comparison of them says anything; else ""."""
        standings = {self.standing(key) for key in keys if key in self.exact}
        return standings.pop() if len(standings) == 1 else ""

    def _parameters(self) -> dict[str, int]:
        """model -> parameters, as the runs counted them."""
        runs = self.shown[self.shown.kind.isin(["pretrain", "published", "extend"])]
        counted = ((r.model, r.record.metrics.get("parameters")) for r in runs.itertuples())
        return {model: round(n) for model, n in counted if n is not None}

    @cached_property
    def contexts(self) -> dict[str, tuple[str, int]]:
        """model -> kind of position and context length, from the runs or else from the preset."""
        found: dict[str, tuple[str, int]] = {}
        kinds = ("pretrain", "published", "extend")
        for cell in (cell for kind in kinds for cell in self.expected(kind).cell):
            model = cell.result_model
            found[str(cell.labels["model"])] = (model.position, model.context_length)
        length: dict[str, int] = {}
        for record in self.runs("pretrain").record:
            length[record.fingerprint] = int(record.params["model.context_length"])
            position = record.params["model.position"]
            found[record.params["model"]] = (position, length[record.fingerprint])
        for record in self.runs("extend").record:
            base = length.get(record.tags.get("parents", ""))
            if base is not None:
                context = round(base * float(record.params["scale"]))
                found[record.params["model"]] = ("yarn", context)
        return found

    def has_setting(self, model: str, setting: str) -> bool:
        """Whether the setting changes something: NoPE and ALiBi have no position at a token."""
        position, _ = self.contexts.get(model, ("", 0))
        return setting in ("full", "no_embed") or position not in ("nope", "alibi")

    def over_context(self, model: str, eval_length: int) -> bool:
        """Whether learned positions end before that length."""
        position, context = self.contexts.get(model, ("", 0))
        return position == "ape" and eval_length > context


def _where(frame: pd.DataFrame, kind: str, labels: Mapping[str, str]) -> pd.DataFrame:
    keep = frame.kind == kind
    for name, value in labels.items():
        keep &= frame[name] == value
    return frame[keep]


def _without_eval_length(key: Key) -> tuple[Any, ...]:
    return key.model, key.task, key.train_length, key.setting


def _first_trouble(cell: Cell, states: Mapping[str, str]) -> str | None:
    """The state of the first of a cell's bases that gives no number."""
    return next((states[c.fingerprint] for c in cell.lineage[:-1] if c.fingerprint in states), None)


def _label_tuples(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(frame[list(LABELS)].itertuples(index=False, name=None))


def _score_rows(run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    metrics = run["record"].metrics
    for name, share in metrics.items():
        if name.startswith("exact_match/"):
            length = name.removeprefix("exact_match/")
            n = round(metrics[f"n/{length}"])
            yield {
                "model": run["model"],
                "task": run["task"],
                "train_length": int(run["train_length"]),
                "eval_length": int(length),
                "setting": run["setting"] or "full",
                "extended": run["extended"],
                "seed": run["seed"],
                "n": n,
                "correct": round(share * n),
                "majority_share": metrics.get(f"majority_share/{length}", np.nan),
                "fingerprint": run["fingerprint"],
                "record": run["record"],
            }


def missing_lines(cells: Sequence[Mapping[str, str]]) -> list[str]:
    """Cells by their labels, one line for what differs in one label alone."""
    rows = [{name: (value,) for name, value in cell.items()} for cell in cells]
    for dimension in ("seed", "setting", "analysis", "site", "beta", "train_length", "task"):
        merged: dict[tuple[Any, ...], dict[str, tuple[str, ...]]] = {}
        for row in rows:
            rest = tuple((k, v) for k, v in row.items() if k != dimension)
            into = merged.setdefault(rest, dict(rest) | {dimension: ()})
            into[dimension] = (*into[dimension], *row.get(dimension, ()))
        rows = list(merged.values())
    return [_line(row) for row in rows]


def _line(row: Mapping[str, tuple[str, ...]]) -> str:
    names = {"train_length": "train length", "eval_length": "eval length"}
    order = ("model", "task", "train_length", "eval_length", "setting", "analysis", "site", "beta", "seed")
    parts = [f"{names.get(name, name)} {', '.join(row[name])}" for name in order if row.get(name)]
    state = f" ({row['state'][0]})" if row.get("state") else ""
    return f"{row['kind'][0]}: {'; '.join(parts)}{state}"


def distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(v for v in values if v))
