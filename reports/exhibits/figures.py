"""Figures 1-3, each with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.exhibits.exhibit import (
    DASH,
    MAJORITY,
    TASK_NAMES,
    Exhibit,
    absent_entry,
    left_out_notes,
    majority_text,
    missing_notes,
    model_order,
    model_title,
    point_entry,
    point_frame,
    point_row,
)
from reports.exhibits.grid import BINS, TASKS, WILSON
from reports.exhibits.plots import (
    Bar,
    Heat,
    accuracy_bars,
    accuracy_marks,
    histograms,
    new_figure,
    nothing_here,
    rate_distortion_curves,
    token_map,
)
from reports.source.results import Key, Results, missing_lines
from reports.source.runs import is_extended
from reports.stats import clustered_mean

PAPER_EVAL_LENGTH = 512
_SITES = {"meta": "last meta token", "last_non_meta": "last non-meta token"}
_SHARPNESS = {
    "max_logit_boost": ("Logit boost", "max logit as is − with zeroed embeddings"),
    "entropy_drop": ("Entropy drop", "entropy with zeroed embeddings − as is (nats)"),
}
_LAYERS = tuple(str(n) for n in range(1, 1000))
_PROBE_CAPTION = "list recall, at the longest train length"


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


def sharpness_figure(results: Results) -> Exhibit:
    """Figure 2: logit boost, entropy drop, and the cosine map."""
    probes = results.runs("probe", analysis="sharpness")
    tables = {
        m: t
        for m in model_order(probes.model)
        if (t := _pooled(results, probes[probes.model == m], "sharpness")) is not None
    }
    figure = new_figure(11, 7)
    layout = figure.subplot_mosaic([list(_SHARPNESS), ["map", "map"]])
    rows, data = [], []
    for column, (title, label) in _SHARPNESS.items():
        values = {m: t[column].to_numpy() for m, t in tables.items()}
        histograms(layout[column], title, label, values) if values else nothing_here(layout[column], title)
        found = [_sharpness_row(model, column, table) for model, table in tables.items()]
        data += found
        rows += [_sharpness_entries(title.lower(), row) for row in found]
    mapped = _first_map(results, "residual", "residual_map")
    title = "Cosine similarity of a meta token's residual stream with the tokens before it"
    _draw_map(layout["map"], title, mapped, Heat("similarity", "cosine", "viridis"), ("input", *_LAYERS))
    exhibit = Exhibit(
        "figure_2",
        "What meta tokens do to logits, entropy and the residual stream",
        f"{_PROBE_CAPTION.capitalize()}. Top left and right (the paper's left and middle): the largest logit "
        "and the entropy of the next-token distribution at meta tokens, against the same sequence with the "
        "embedding of all meta tokens zeroed; vertical lines: means. Bottom (the paper's right): one "
        "example's last meta token, layer by token; the last column is the token itself.",
        pd.DataFrame(
            rows, columns=["quantity", "model", "mean [95%]", "above 0 (%)", "n meta tokens", "examples"]
        ),
        labels=2,
        data=pd.DataFrame(data),
        notes=[
            "The mean's interval takes examples, not meta tokens, as independent.",
            *_theorem_notes(probes),
        ],
        runs=[*probes.fingerprint, *([mapped[2]] if mapped else [])],
        paper=results.reference.block("figure_2"),
        figure=figure,
    )
    return _with_probe_notes(results, exhibit, ("sharpness", "residual"))


def attention_and_rate_figure(results: Results) -> Exhibit:
    """Figure 3: the attention row at a pause, and rate against distortion."""
    figure = new_figure(11, 7.6)
    layout = figure.subplot_mosaic([["map"], ["curve"]], height_ratios=[1, 1.5])
    mapped = _first_map(results, "attention", "attention_map")
    title = "Causal attention at the last _PAUSE_, mean over heads"
    _draw_map(layout["map"], title, mapped, Heat("weight", "weight", "magma", 0.0), _LAYERS)
    curves = _curves(results)
    if curves:
        rate_distortion_curves(layout["curve"], curves)
    else:
        nothing_here(layout["curve"], "Rate and distortion")
    points = results.runs("rate_distortion")
    data = [frame.assign(model=model, site=site) for (model, site), frame in curves.items()]
    exhibit = Exhibit(
        "figure_3",
        "Where a meta token looks, and how much it holds",
        "Top (the paper's left): attention of one example's last meta token, layer by position "
        f"({_PROBE_CAPTION}). Bottom (the paper's right): a variational bottleneck on the frozen pre-trained "
        "model's last layer, at the last meta token and at the last non-meta token, one point a beta; rate = "
        "KL, distortion = cross-entropy, both on the examples it is fitted on, as in the paper.",
        _rate_frame(curves),
        labels=3,
        data=pd.concat(data, ignore_index=True) if data else pd.DataFrame(),
        notes=["Several seeds: rate and distortion are means over seeds."] if _seeds(points) > 1 else [],
        missing=missing_notes(results, ("rate_distortion", {})),
        runs=[*([mapped[2]] if mapped else []), *points.fingerprint],
        paper=results.reference.block("figure_3"),
        figure=figure,
    )
    exhibit.notes += left_out_notes(results, "rate_distortion")
    return _with_probe_notes(results, exhibit, ("attention",))


def _rate_frame(curves: Mapping[tuple[str, str], pd.DataFrame]) -> pd.DataFrame:
    """The points of the curves as they are shown."""
    rows = [
        [
            model_title(model),
            _SITES[site],
            f"{p.beta:g}",
            f"{p.rate:.3g}",
            f"{p.distortion:.4g}",
            f"{p.n:.0f}",
            f"{p.seeds:.0f}",
        ]
        for (model, site), frame in curves.items()
        for p in frame.itertuples()
    ]
    heads = ["model", "site", "beta", "rate (nats)", "distortion (nats)", "n examples", "seeds"]
    return pd.DataFrame(rows, columns=heads)


def _draw_map(
    ax: Axes, title: str, mapped: tuple[str, pd.DataFrame, str] | None, heat: Heat, layers: Sequence[str]
) -> None:
    """The map of `_first_map`, its rows named by the first of `layers`."""
    if mapped is None:
        nothing_here(ax, title)
        return
    model, frame, _ = mapped
    token_map(ax, f"{title} ({model_title(model)})", frame, heat, layers[: frame.layer.nunique()])


def _with_probe_notes(results: Results, exhibit: Exhibit, analyses: tuple[str, ...]) -> Exhibit:
    wanted = [("probe", {"analysis": analysis}) for analysis in analyses]
    exhibit.missing = [*missing_notes(results, *wanted), *exhibit.missing]
    exhibit.notes += left_out_notes(results, "probe")
    return exhibit


def _pooled(results: Results, runs: pd.DataFrame, name: str) -> pd.DataFrame | None:
    """One table of all seeds, with the seed as a column."""
    tables = [(r.seed, results.table(r.record, name)) for r in runs.itertuples()]
    found = [t.assign(seed=seed) for seed, t in tables if t is not None and len(t)]
    return pd.concat(found, ignore_index=True) if found else None


def _first_map(results: Results, analysis: str, name: str) -> tuple[str, pd.DataFrame, str] | None:
    """Model, map and fingerprint of one run: the last model in table order, its first seed."""
    runs = results.runs("probe", analysis=analysis)
    for model in reversed(model_order(runs.model)):
        for run in runs[runs.model == model].sort_values("seed").itertuples():
            table = results.table(run.record, name)
            if table is not None:
                return model, table, run.fingerprint
    return None


def _sharpness_row(model: str, column: str, table: pd.DataFrame) -> dict[str, object]:
    values = table[column].to_numpy()
    clusters = list(zip(table.seed, table.example, strict=True))
    mean = clustered_mean(values, clusters)
    return {
        "quantity": column,
        "model": model,
        "mean": mean.value,
        "low": mean.low,
        "high": mean.high,
        "share_above_0": float((values > 0).mean()),
        "n": len(values),
        "examples": len(set(clusters)),
        "seeds": table.seed.nunique(),
    }


def _sharpness_entries(quantity: str, row: Mapping[str, Any]) -> list[str]:
    return [
        quantity,
        model_title(row["model"]),
        f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]",
        f"{100 * row['share_above_0']:.1f}",
        str(row["n"]),
        str(row["examples"]),
    ]


def _theorem_notes(probes: pd.DataFrame) -> list[str]:
    """Theorem 4.1 on attention rows: how often its premise holds, and how often entropy falls."""
    notes = []
    for model in model_order(probes.model):
        metrics = [r.metrics for r in probes.record[probes.model == model]]
        found = {
            name: f"{100 * np.mean(values):.1f}%" if values else DASH
            for name in ("premise_rate", "entropy_fall_rate", "fall_given_premise")
            for values in [[m[name] for m in metrics if name in m]]
        }
        rows = sum(int(m.get("n_attention_rows", 0)) for m in metrics)
        notes.append(
            f"Theorem 4.1, {model_title(model)}, {rows:,} attention rows: a logit boost on a meta key lowers "
            f"the row's entropy in {found['entropy_fall_rate']}; the premise holds in "
            f"{found['premise_rate']}, and there entropy falls in {found['fall_given_premise']}."
        )
    return notes


def _curves(results: Results) -> dict[tuple[str, str], pd.DataFrame]:
    """(model, site) -> beta, rate, distortion, n, seeds; ascending beta, means over seeds."""
    runs = results.runs("rate_distortion")
    curves: dict[tuple[str, str], pd.DataFrame] = {}
    for model in model_order(runs.model):
        for site in _SITES:
            mine = runs[(runs.model == model) & (runs.site == site)]
            if mine.empty:
                continue
            points = pd.DataFrame(
                [
                    {"beta": float(r.beta), **{k: r.record.metrics[k] for k in ("rate", "distortion", "n")}}
                    for r in mine.itertuples()
                ]
            )
            by_beta = points.groupby("beta")
            curves[model, site] = by_beta.mean().assign(seeds=by_beta.size()).reset_index()
    return curves


def _seeds(runs: pd.DataFrame) -> int:
    return int(runs.seed.nunique())


def figures(results: Results) -> list[Exhibit]:
    """Figures 1-3."""
    return [accuracy_figure(results), sharpness_figure(results), attention_and_rate_figure(results)]
