"""From runs to numbers: one configuration a label, seeds pooled by examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from metatok.experiment import Ledger, RunRecord
from metatok.experiment.design import kind_names
from reports.source.paper import Reference
from reports.source.runs import LABELS, Selection, table_of
from reports.stats import Estimate, Paired, clustered_share, mean_of_seeds, paired, wilson

# The labels within which one configuration is shown; a rate-distortion curve is one as a whole.
_GROUPED_BY = [name for name in LABELS if name not in ("seed", "site", "beta")]
_NOT_SHOWN = {"candidate"}  # a search's, of which its choice is told
_BUILT_ON_SHOWN = {"ablate": "finetune", "probe": "finetune"}


class Key(NamedTuple):
    """Where a score stands in a table."""

    model: str
    task: str
    train_length: int
    eval_length: int
    setting: str = "full"


@dataclass(frozen=True)
class Point:
    """One accuracy: all seeds' examples pooled, and the mean over seeds where there are several."""

    pooled: Estimate
    n: int
    seeds: int
    by_seed: Estimate
    fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class Gain:
    """An intervention against the full model on the same examples: pooled over seeds, and by seed."""

    test: Paired
    seeds: int
    by_seed: Estimate


@dataclass
class Results:
    """What the exhibits are filled from.

    shown: the runs that count, at most one a seed and label. left_out: runs at the same labels as a shown
    one but of another configuration, with `why`.
    """

    ledger: Ledger
    selection: Selection
    reference: Reference = field(default_factory=Reference.load)

    def __post_init__(self) -> None:
        self.shown, self.left_out = _choose(self.selection.runs)
        self._tables: dict[tuple[str, str], pd.DataFrame | None] = {}

    def runs(self, kind: str, **labels: str) -> pd.DataFrame:
        """Shown runs of a kind with these labels."""
        return _where(self.shown, kind, labels)

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
        """The preset's cells of a kind that no shown run fills, by their labels."""
        done = set(_label_tuples(self.runs(kind, **labels)))
        cells = self.expected(kind, **labels)
        return [
            {"kind": kind} | {n: v for n, v in zip(LABELS, values, strict=True) if v}
            for values in _label_tuples(cells)
            if values not in done
        ]

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
            )
        return points

    def examples(self, record: RunRecord, eval_length: int) -> pd.DataFrame | None:
        """The per-example records of one eval length, or None if they cannot be read."""
        table = self.table(record, "records")
        if table is None or "exact" not in table:
            return None
        return table[table.eval_length == eval_length].set_index("index")

    def gain(self, key: Key) -> Gain | None:
        """key.setting minus full, paired by seed and example; None where either is missing."""
        rows = self._by_fine_tune.get(tuple(key[:4]), self.scores.iloc[:0])
        full = rows[rows.setting == "full"].set_index("fingerprint")
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        for row in rows[rows.setting == key.setting].itertuples():
            parent = row.record.tags.get("parents", "")
            if parent not in full.index:
                continue
            before = self.examples(full.record[parent], key.eval_length)
            after = self.examples(row.record, key.eval_length)
            if before is None or after is None:
                continue
            joined = before[["exact"]].join(after.exact.rename("after"), how="inner")
            pairs.append((joined.exact.to_numpy(bool), joined.after.to_numpy(bool)))
        if not pairs or not sum(len(a) for a, _ in pairs):
            return None
        test = paired(*(np.concatenate(side) for side in zip(*pairs, strict=True)))
        return Gain(test, len(pairs), mean_of_seeds([b.mean() - a.mean() for a, b in pairs]))

    @cached_property
    def _by_fine_tune(self) -> dict[tuple[object, ...], pd.DataFrame]:
        """Scores by Key's fields but the setting."""
        return dict(iter(self.scores.groupby(list(Key._fields[:4]))))

    def majority(self, task: str, eval_length: int) -> float | None:
        """Accuracy of always giving the commonest answer; the largest where test sets differ."""
        return self._majority.get((task, eval_length))

    @cached_property
    def _majority(self) -> dict[tuple[str, int], float]:
        shares = self.scores.groupby(["task", "eval_length"]).majority_share.max().dropna()
        return {(str(task), int(length)): float(share) for (task, length), share in shares.items()}

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


def _choose(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs to show, and those left out for another configuration at the same labels.

    The preset's own configuration counts where it is there, else the newest. What is built on a fine-tune
    is shown only with that fine-tune.
    """
    shown: dict[str, pd.DataFrame] = {}
    left_out: list[pd.DataFrame] = []
    for kind in (name for name in kind_names() if name not in _NOT_SHOWN):
        mine = runs[runs.kind == kind]
        if kind in _BUILT_ON_SHOWN:
            on_shown = mine.parent.isin(set(shown[_BUILT_ON_SHOWN[kind]].fingerprint))
            left_out.append(mine[~on_shown].assign(why="built on a fine-tune that is not shown"))
            mine = mine[on_shown]
        kept = [mine.iloc[:0]]
        for _, group in mine.groupby(_GROUPED_BY, sort=False):
            ranked = group.sort_values(["expected", "start"])
            config = ranked.config.iloc[-1]
            same = ranked[ranked.config == config].drop_duplicates(["seed", "site", "beta"], keep="last")
            kept.append(same.sort_index())
            rest = group.drop(same.index)
            left_out.append(rest.assign(why=[_why(r, same.record.iloc[0]) for r in rest.record]))
        shown[kind] = pd.concat(kept)
    return pd.concat(shown.values(), ignore_index=True), pd.concat(left_out, ignore_index=True)


def _why(record: RunRecord, shown: RunRecord) -> str:
    names = sorted(
        name
        for name in {*record.params, *shown.params} - {"seed", "site", "beta"}
        if record.params.get(name) != shown.params.get(name)
    )
    return f"differs in {', '.join(names)}" if names else "differs in its base or in the code's version"


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
    return f"{row['kind'][0]}: {'; '.join(parts)}"


def distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(v for v in values if v))
