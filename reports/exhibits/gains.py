"""Tables 2 and 17: zeroing the position at meta tokens against the full model, paired."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from reports.exhibits.exhibit import (
    DASH,
    FLOOR_NOTE,
    MAJORITY,
    Exhibit,
    absent_entry,
    base_rate_entry,
    difference_entry,
    model_title,
    p_text,
    point_entry,
)
from reports.exhibits.grid import (
    BINS,
    WILSON,
    ablated_models,
    ablation_missing,
    ablation_runs,
    eval_lengths,
    fine_tunes,
)
from reports.source.comparisons import Comparison, ablation
from reports.source.paper import PaperValue
from reports.source.results import Key, Point, Results
from reports.stats import ALPHA, holm

_HEADS = [
    "model",
    "train length",
    "eval length",
    "full",
    "no pos",
    "gain (points)",
    "won / lost",
    "p",
    "p (Holm)",
    MAJORITY,
]
_NO_POS_COLUMNS = (
    *Key._fields, "full", "no_pos", "gain", "low", "high", "p", "p_holm", "won", "lost", "n", "seeds",
    "majority_share", "paper_full", "paper_no_pos", "paper_gain",
)  # fmt: skip


def no_pos(results: Results, number: int) -> Exhibit:
    """Table 17: no pos against full, every one. Table 2: gains that survive, and the paper's own."""
    task = "list_recall"
    models = ablated_models(results, task)
    keys = [
        Key(model, task, train, length, "no_pos")
        for model, train in fine_tunes(results, task)
        if model in models
        for length in eval_lengths(results, task, extended=False)
        if not results.over_context(model, length)
    ]
    rows = _rows(results, keys)
    kept = [row for row in rows if number == 17 or row.survives or _in_paper(results, row.key)]
    exhibit = Exhibit(
        f"table_{number:02d}",
        "No position at the meta tokens against the full model on list recall"
        + ("" if number == 17 else ": where it gains"),
        "Exact-match accuracy in percent and the gain of zeroing the position at meta tokens, in points. "
        f"{WILSON}. Several seeds: the mean gain, t-interval and paired t-test over seeds. One seed: "
        "Newcombe's interval for paired proportions (method 10) and the exact McNemar test, which are about "
        "that model alone. p (Holm): adjusted within Table 17. won / lost: examples that only one of the two "
        "gets right.",
        pd.DataFrame([_entries(results, row) for row in kept], columns=_HEADS),
        labels=3,
        data=pd.DataFrame([_data(results, row) for row in kept], columns=list(_NO_POS_COLUMNS)),
        notes=[FLOOR_NOTE, BINS],
        missing=ablation_missing(results, task, models, ("no_pos",)),
        runs=ablation_runs(results, task, models, ("no_pos",)),
        paper=results.reference.block("table_2", "setting"),
    )
    compared = [row for row in rows if row.comparison is not None]
    if number == 2 and compared:
        gains = sum(row.survives for row in compared)
        exhibit.notes.append(
            f"Selected, as in the paper, for a gain, here one that survives Holm's correction: {gains} of "
            f"{len(compared)} comparisons; and the paper's own coordinates. Table 17 has them all."
        )
    return exhibit


class _Row(NamedTuple):
    """A coordinate with its comparison, and Holm's p within Table 17."""

    key: Key
    comparison: Comparison | None
    p_holm: float

    @property
    def survives(self) -> bool:
        """Whether there is a gain that chance does not explain."""
        found = self.comparison
        return found is not None and found.difference.value > 0 and self.p_holm < ALPHA


def _rows(results: Results, keys: Sequence[Key]) -> list[_Row]:
    found = [ablation(results, key) for key in keys]
    adjusted = holm([math.nan if c is None else c.p for c in found])
    return [_Row(*row) for row in zip(keys, found, adjusted, strict=True)]


def _papers(results: Results, key: Key) -> list[PaperValue | None]:
    """The paper's full, no pos and gain."""
    wanted = (("full", "accuracy"), ("no_pos", "accuracy"), ("no_pos_minus_full", "accuracy_delta"))
    return [results.reference.at(*key._replace(setting=s), metric, prefer="table_2") for s, metric in wanted]


def _points(results: Results, key: Key) -> list[Point | None]:
    """Ours: full and no pos."""
    return [results.exact.get(key._replace(setting=setting)) for setting in ("full", "no_pos")]


def _entries(results: Results, row: _Row) -> list[object]:
    key, papers = row.key, _papers(results, row.key)
    entries: list[object] = [
        point_entry(point, paper) if point else absent_entry(results, key, paper)
        for point, paper in zip(_points(results, key), papers, strict=False)
    ]
    if row.comparison is None:
        entries += [absent_entry(results, key, papers[2]), DASH, DASH, DASH]
    else:
        tests = row.comparison.tests
        entries += [
            difference_entry(row.comparison, papers[2]),
            f"{sum(t.gained for t in tests)} / {sum(t.lost for t in tests)}",
            p_text(row.comparison.p),
            p_text(row.p_holm),
        ]
    labels = [model_title(key.model), str(key.train_length), str(key.eval_length)]
    return [*labels, *entries, base_rate_entry(results.base_rate(key.task, key.eval_length))]


def _data(results: Results, row: _Row) -> dict[str, object]:
    key, found = row.key, row.comparison
    data: dict[str, object] = dict.fromkeys(_NO_POS_COLUMNS) | key._asdict()
    data["majority_share"] = results.majority(key.task, key.eval_length)
    papers = zip(("paper_full", "paper_no_pos", "paper_gain"), _papers(results, key), strict=True)
    data |= {name: paper.value for name, paper in papers if paper}
    points = zip(("full", "no_pos"), _points(results, key), strict=True)
    data |= {name: point.pooled.value for name, point in points if point}
    if found is not None:
        data |= {"gain": found.difference.value, "low": found.difference.low, "high": found.difference.high}
        data |= {"p": found.p, "p_holm": row.p_holm, "n": found.n, "seeds": found.seeds}
        data |= {"won": sum(t.gained for t in found.tests), "lost": sum(t.lost for t in found.tests)}
    return data


def _in_paper(results: Results, key: Key) -> bool:
    return results.reference.at(*key, "accuracy") is not None
