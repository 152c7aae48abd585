"""Controlled comparisons, beyond the paper: what it is about a meta model that helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from reports.exhibits.exhibit import FLOOR_NOTE, TASK_NAMES, Entry, Exhibit, model_title, p_text, signed
from reports.exhibits.grid import BINS, TASKS
from reports.source.comparisons import CONTRASTS, POSITIONS, Comparison, ControlCell, control_name
from reports.source.results import Results
from reports.stats import ALPHA, RESAMPLES, holm

_COLUMNS = (
    "question", "treated", "control", "task", "train_length", "eval_length", "state", "treated_accuracy",
    "control_accuracy", "difference", "low", "high", "p", "p_holm", "bootstrap_low", "bootstrap_high",
    "cohens_h", "cohens_h_low", "cohens_h_high", "mcnemar_p_by_seed", "n", "seeds",
)  # fmt: skip


class _Row(NamedTuple):
    cell: ControlCell
    p_holm: float

    @property
    def state(self) -> str:
        """What may be said of the difference."""
        cell, found = self.cell, self.cell.comparison
        if found is None:
            return cell.absent
        if cell.nothing:
            return f"tests nothing: {cell.nothing}"
        if cell.tested is None:
            return "1 seed"
        if not self.p_holm < ALPHA:
            return "undecided"
        return "higher" if found.difference.value > 0 else "lower"


def controls(results: Results, cells: Sequence[ControlCell]) -> Exhibit:
    """The four questions, at every position, task, train length and eval length."""
    rows = _corrected(cells)
    lengths = sorted({row.cell.treated.eval_length for row in rows})
    by_place: dict[tuple[str, str, str, str, str], dict[int, _Row]] = {}
    for row in rows:
        cell, key = row.cell, row.cell.treated
        names = (model_title(key.model), model_title(cell.control.model))
        place = (cell.contrast.question, " against ".join(names), TASK_NAMES.get(key.task, key.task))
        by_place.setdefault((*place, str(key.train_length), key.task), {})[key.eval_length] = row
    frame_rows: list[list[object]] = [
        [*place[:4], *(_entry(found[n]) if n in found else "" for n in lengths)]
        for place, found in by_place.items()
    ]
    absent = _absent(results, cells)
    frame_rows += [[*names, "", "", *["not tested"] * len(lengths)] for names in absent]
    questions = [contrast.question for contrast in CONTRASTS]
    frame_rows.sort(key=lambda row: questions.index(str(row[0])))
    labels = ["question", "models", "task", "train length"]
    return Exhibit(
        "controls",
        "Controlled comparisons: meta-attention, injected tokens, extra parameters",
        "First model minus second, in points of exact match, on the same test examples: the mean of the "
        "seeds' differences with its t-interval over seeds. “higher” and “lower” survive Holm's correction "
        "over one question on one task (paired t-test over seeds); “undecided” does not and is no finding. "
        "h: Cohen's effect size with its t-interval. One seed: Newcombe's interval, about these two runs.",
        pd.DataFrame(frame_rows, columns=[*labels, *map(str, lengths)]),
        labels=len(labels),
        data=pd.DataFrame([_data(results, row) for row in rows], columns=list(_COLUMNS)),
        spanner="evaluation length (tokens)",
        notes=[
            "Meta against Pause asks about the meta-attention, Pause against GPT-2 about the injected "
            "tokens, Wide against GPT-2 about the extra parameters; Meta against GPT-2 has all at once.",
            f"controls.csv adds each seed's exact McNemar test, and an interval of {RESAMPLES} paired "
            "bootstrap draws of seeds and examples, which is too narrow at few seeds.",
            FLOOR_NOTE,
            BINS,
        ],
        missing=[f"{question}: {models}, not both scored in the ledger" for question, models in absent],
        runs=sorted({f for row in rows for key in (row.cell.treated, row.cell.control)
                     if key in results.exact for f in results.exact[key].fingerprints}),
    )  # fmt: skip


def _corrected(cells: Sequence[ControlCell]) -> list[_Row]:
    """The cells with Holm's p within each question on each task, over what can say something."""
    families: dict[tuple[str, str], list[ControlCell]] = {}
    for cell in sorted(cells, key=lambda cell: TASKS.index(cell.treated.task)):
        families.setdefault((cell.contrast.question, cell.treated.task), []).append(cell)
    rows = []
    for family in families.values():
        p_values = [math.nan if cell.tested is None else cell.tested.p for cell in family]
        rows += [_Row(*pair) for pair in zip(family, holm(p_values), strict=True)]
    return rows


def _absent(results: Results, cells: Sequence[ControlCell]) -> list[tuple[str, str]]:
    """The questions whose two models are not both there, by question and models."""
    done = {(cell.contrast, cell.position) for cell in cells}
    return [
        (contrast.question, " against ".join(map(model_title, names)))
        for contrast in CONTRASTS
        for position in POSITIONS
        for names in [(f"{contrast.treated}_{position}", control_name(contrast, position))]
        if (contrast, position) not in done
    ]


def _entry(row: _Row) -> Entry:
    found = row.cell.comparison
    if found is None or row.cell.nothing:
        return Entry(row.state, state="missing" if found is None else "measured")
    value, low, high = found.difference
    details = [f"[{signed(low)}, {signed(high)}]", f"n={found.n}", f"{found.seeds} seeds"]
    if row.cell.tested is None:
        return Entry(f"{signed(value)} ({row.state})", tuple(details[:2]))
    effect = found.effect
    size = f"h {effect.value:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}]".replace("-", "−")
    return Entry(f"{signed(value)} {row.state}", (*details, f"p (Holm) {p_text(row.p_holm)}", size))


def _data(results: Results, row: _Row) -> dict[str, object]:
    cell, found, key = row.cell, row.cell.comparison, row.cell.treated
    data: dict[str, object] = {
        "question": cell.contrast.question,
        "treated": key.model,
        "control": cell.control.model,
        "task": key.task,
        "train_length": key.train_length,
        "eval_length": key.eval_length,
        "state": row.state,
    }
    if found is None:
        return data
    return data | _numbers(found) | {"p_holm": row.p_holm}


def _numbers(found: Comparison) -> dict[str, object]:
    value, low, high = found.difference
    resampled, effect = found.bootstrap, found.effect
    return {
        "treated_accuracy": float(sum(p.treated.sum() for p in found.pairs) / found.n),
        "control_accuracy": float(sum(p.control.sum() for p in found.pairs) / found.n),
        "difference": value,
        "low": low,
        "high": high,
        "p": found.p,
        "bootstrap_low": resampled.low,
        "bootstrap_high": resampled.high,
        "cohens_h": effect.value,
        "cohens_h_low": effect.low,
        "cohens_h_high": effect.high,
        "mcnemar_p_by_seed": "; ".join(
            f"seed {pair.seed}: {test.p:.3g}" for pair, test in zip(found.pairs, found.tests, strict=True)
        ),
        "n": found.n,
        "seeds": found.seeds,
    }
