"""Figure 1, and the list of all figures, each with the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from reports.exhibits.exhibit import (
    MAJORITY,
    TASK_NAMES,
    Exhibit,
    absent_entry,
    majority_text,
    model_order,
    model_title,
    point_entry,
    point_frame,
    point_row,
)
from reports.exhibits.grid import BINS, TASKS, WILSON
from reports.exhibits.plots import (
    Bar,
    accuracy_bars,
    accuracy_marks,
    new_figure,
    nothing_here,
)
from reports.exhibits.probes import sharpness_figure
from reports.exhibits.rates import attention_and_rate_figure
from reports.source.results import Key, Results, missing_lines
from reports.source.runs import is_extended

PAPER_EVAL_LENGTH = 512


def figure_eval_length(results: Results) -> int | None:
    """512 as in the paper if every model is scored there, else the longest length that all models share."""
    lengths: dict[str, set[int]] = {}
    for key in results.exact:
        if key.setting == "full" and not is_extended(key.model):
            lengths.setdefault(key.model, set()).add(key.eval_length)
    if not lengths:
        cells = results.expected("finetune")
        for row in cells[~cells.extended].itertuples():
            lengths.setdefault(row.model, set()).update(row.cell.eval_lengths)
    common = set.intersection(*lengths.values()) if lengths else set()
    return PAPER_EVAL_LENGTH if PAPER_EVAL_LENGTH in common else max(common, default=None)


def accuracy_figure(results: Results) -> Exhibit:
    """Figure 1: accuracy by train length and model at one eval length, a panel a task."""
    length = figure_eval_length(results)
    both = (results.runs("finetune"), results.expected("finetune"))
    order = model_order(m for frame in both for m in frame.model)
    rows = sorted(
        {(r.model, int(r.train_length)) for frame in both for r in frame[~frame.extended].itertuples()},
        key=lambda row: (order.index(row[0]), row[1]),
    )
    figure = new_figure(11, 7)
    axes = figure.subplots(2, 2).ravel()
    frame = pd.DataFrame(
        [*((model_title(m), str(t)) for m, t in rows), (MAJORITY, "")], columns=["model", "train length"]
    )
    data: list[dict[str, object]] = []
    runs: list[str] = []
    for ax, task in zip(axes, TASKS, strict=True):
        keys = [Key(model, task, train, length or 0) for model, train in rows]
        frame[TASK_NAMES[task]], tidy = _task_panel(results, ax, keys, results.majority(task, length or 0))
        data += tidy
        runs += [f for key in keys if key in results.exact for f in results.exact[key].fingerprints]
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        handles |= accuracy_marks()
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False)
    missing = [c for c in results.missing("finetune") if not is_extended(c["model"])]
    return Exhibit(
        "figure_1",
        "Accuracy by train length, a panel a task",
        _accuracy_caption(length),
        frame,
        labels=2,
        data=point_frame(data),
        spanner="exact match (%)",
        notes=[BINS],
        missing=missing_lines(missing),
        runs=runs,
        paper=results.reference.block("figure_1", "train_length"),
        figure=figure,
    )


def _task_panel(
    results: Results, ax: Axes, keys: Sequence[Key], majority: float | None
) -> tuple[list[object], list[dict[str, object]]]:
    """Draw one task's bars. Returns its column of the table and its tidy rows."""
    bars: dict[tuple[str, int], Bar] = {}
    column: list[object] = []
    data = []
    for key in keys:
        point, paper = results.exact.get(key), results.reference.at(*key, "accuracy", prefer="figure_1")
        entry = point_entry(point, paper) if point else absent_entry(results, key, paper)
        column.append(entry)
        data.append(point_row(key, point, entry, majority))
        if point:
            value = float(paper.value) / 100 if paper else None
            bars[key.model, key.train_length] = Bar(*point.pooled, value)
    title = TASK_NAMES[keys[0].task].capitalize() if keys else ""
    accuracy_bars(ax, title, bars, majority) if bars else nothing_here(ax, title)
    return [*column, majority_text(majority)], data


def _accuracy_caption(length: int | None) -> str:
    if length is None:
        return "No fine-tune is there, and no evaluation length is known."
    why = (
        "as in the paper"
        if length == PAPER_EVAL_LENGTH
        else "the longest that all models are scored at; the paper's is 512"
    )
    return (
        f"Exact-match accuracy at evaluation length {length} ({why}). Error bars: 95% Wilson intervals. "
        f"Dashed: always giving the {MAJORITY}. Diamonds: the paper's value, where it has one there. "
        f"Table: {WILSON}."
    )


def figures(results: Results) -> list[Exhibit]:
    """Figures 1-3."""
    return [accuracy_figure(results), sharpness_figure(results), attention_and_rate_figure(results)]
