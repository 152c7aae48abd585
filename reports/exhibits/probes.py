"""Figure 2: what meta tokens do to logits, entropies and the residual stream; what probes' exhibits share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.exhibits.exhibit import (
    DASH,
    Exhibit,
    left_out_notes,
    missing_notes,
    model_order,
    model_title,
)
from reports.exhibits.plots import Bar, Heat, by_head, histograms, new_figure, nothing_here, span, token_map
from reports.source.results import Results
from reports.stats import Estimate, clustered_mean, clustered_share, mean_of_seeds

LAYERS = tuple(str(n) for n in range(1, 1000))
PROBE_CAPTION = "list recall, at the longest train length"
UNIT_OF_INTERVALS = (
    "95% intervals are t intervals over seeds where there are several, else over examples (not over meta "
    "tokens, of which an example has several); the column “interval over” says which. Seeds that agree give "
    "an interval without width, which is no certainty."
)
_HISTOGRAMS = {
    "max_logit_boost": ("Logit boost", "max logit as is − with zeroed embeddings"),
    "entropy_drop": ("Entropy drop", "entropy with zeroed embeddings − as is (nats)"),
}
_BY_HEAD = {
    "attention_entropy": ("Entropy of the last meta token's attention row", "entropy (nats)"),
    "premise": ("Share of attention rows where Theorem 4.1's premise holds", "share (%)"),
}
_NOT_RECORDED = "not recorded"


class Mean(NamedTuple):
    """A mean with its interval. over: what the interval takes as independent, "seeds" or "examples"."""

    value: float
    low: float
    high: float
    over: str


def sharpness_figure(results: Results) -> Exhibit:
    """Figure 2: logit boost, entropy drop, the cosine map, and attention rows by layer and head."""
    probes = results.runs("probe", analysis="sharpness")
    heads = head_rows(results, probes)
    height = 0.15 if heads.empty else 0.75
    figure = new_figure(11, 7.2 + 6.4 * height)
    layout = figure.subplot_mosaic(
        [list(_HISTOGRAMS), ["map", "map"], *([name, name] for name in _BY_HEAD)],
        height_ratios=[1, 1, height, height],
    )
    tables = by_model(results, probes, "sharpness")
    data = [_row(m, name, t, t[name]) for name in _HISTOGRAMS for m, t in tables.items()]
    for name, (title, label) in _HISTOGRAMS.items():
        means = {r["model"]: Bar(r["mean"], r["low"], r["high"]) for r in data if r["quantity"] == name}
        values = {m: t[name].to_numpy() for m, t in tables.items()}
        histograms(layout[name], title, label, values, means) if values else nothing_here(layout[name], title)
    mapped = first_map(results, "residual", "residual_map")
    title = "Cosine similarity of a meta token's residual stream with the tokens before it"
    draw_map(layout["map"], title, mapped, Heat("similarity", "cosine", "viridis"), ("input", *LAYERS))
    for name, (title, label) in _BY_HEAD.items():
        _draw_heads(layout[name], title, label, heads[heads.quantity == name])
    overall = heads[heads.layer.isna()].to_dict("records")
    exhibit = Exhibit(
        "figure_2",
        "What meta tokens do to logits, entropy and the residual stream",
        _caption(),
        pd.DataFrame(
            [_entries(row) for row in [*data, *overall]],
            columns=[
                "quantity",
                "model",
                "mean [95%]",
                "interval over",
                "above 0 (%)",
                "n",
                "examples",
                "seeds",
            ],
        ),
        labels=2,
        data=pd.concat([pd.DataFrame(data), heads], ignore_index=True),
        notes=[UNIT_OF_INTERVALS, *_theorem_notes(probes), *_unrecorded_notes(probes)],
        runs=[*probes.fingerprint, *([mapped[2]] if mapped else [])],
        paper=results.reference.block("figure_2"),
        figure=figure,
    )
    return with_probe_notes(results, exhibit, ("sharpness", "residual"))


def _caption() -> str:
    return (
        f"{PROBE_CAPTION.capitalize()}. Top left and right (the paper's left and middle): the largest logit "
        "and the entropy of the next-token distribution at meta tokens, against the same sequence with the "
        "embedding of all meta tokens zeroed; vertical lines: means, bands: their 95% intervals, n: meta "
        "tokens. Second row (the paper's right): one example's last meta token, layer by token, a single "
        "example and so without an interval; the last column is the token itself. Below (not in the paper): "
        "the causal attention of each example's last meta token, each head by itself, mean over examples: "
        "its entropy (T: keys of the row), and how often an earlier meta token has the weight that Theorem "
        "4.1 needs, at least exp(−entropy)."
    )


def _draw_heads(ax: Axes, title: str, label: str, rows: pd.DataFrame) -> None:
    single = rows[rows.layer.notna()]
    if single.empty:
        nothing_here(ax, title, _NOT_RECORDED)
        return
    percent = label.endswith("(%)")
    points = single.astype({"layer": int, "head": int})
    points[["mean", "low", "high"]] *= 100 if percent else 1
    by_head(ax, title, label, points, None if percent else float(np.average(points.uniform)))
    ax.set_ylim(bottom=-0.04 * ax.get_ylim()[1])  # a point at 0 is seen whole


def by_model(results: Results, runs: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    """model -> one table of all its seeds, with the seed as a column; models that have none are left out."""
    found: dict[str, pd.DataFrame] = {}
    for model in model_order(runs.model):
        mine = runs[runs.model == model]
        tables = [(r.seed, results.table(r.record, name)) for r in mine.itertuples()]
        present = [t.assign(seed=seed) for seed, t in tables if t is not None and len(t)]
        if present:
            found[model] = pd.concat(present, ignore_index=True)
    return found


def has_heads(runs: pd.DataFrame) -> pd.DataFrame:
    """The sharpness probes that kept what each head does; older ones didn't, and aren't damaged for it."""
    kept = [any(m.startswith("attention_entropy/") for m in r.metrics) for r in runs.record]
    return runs[pd.Series(kept, runs.index, dtype=bool)]


def head_rows(results: Results, probes: pd.DataFrame) -> pd.DataFrame:
    """Entropy and premise by model, layer and head, and over all of them where layer and head are empty."""
    recorded = has_heads(probes)
    rows = []
    for quantity, name, column in (
        ("attention_entropy", "attention_rows", "entropy"),
        ("premise", "boost_effect", "premise"),
    ):
        for model, table in by_model(results, recorded, name).items():
            rows.append(_row(model, quantity, table, table[column]))
            for (layer, head), mine in table.groupby(["layer", "head"]):
                place = {"layer": layer, "head": head}
                if quantity == "attention_entropy":
                    place["uniform"] = float(np.log(mine["keys"]).mean())
                rows.append(_row(model, quantity, mine, mine[column]) | place)
    columns = ["quantity", "model", "layer", "head", "mean", "uniform"]
    return pd.DataFrame(rows, columns=None if rows else columns)


def mean_of(values: pd.Series, table: pd.DataFrame) -> Mean:
    """The mean over seeds of seeds' means; of a single seed, the mean with examples as independent."""
    if table.seed.nunique() > 1:
        return Mean(*mean_of_seeds(values.groupby(table.seed).mean()), "seeds")
    if values.dtype == bool:
        return Mean(*_share(values.groupby(table.example)), "examples")
    return Mean(*clustered_mean(values, list(table.example)), "examples")


def _share(by_example: Any) -> Estimate:
    return clustered_share(by_example.sum(), by_example.size())


def _row(model: str, quantity: str, table: pd.DataFrame, values: pd.Series) -> dict[str, Any]:
    mean = mean_of(values, table)
    above = float((values > 0).mean()) if quantity in _HISTOGRAMS else np.nan
    return {
        "quantity": quantity,
        "unit": {"max_logit_boost": "logits", "premise": "share"}.get(quantity, "nats"),
        "model": model,
        "mean": mean.value,
        "low": mean.low,
        "high": mean.high,
        "interval_over": mean.over,
        "share_above_0": above,
        "n": len(values),
        "examples": len(table[["seed", "example"]].drop_duplicates()),
        "seeds": table.seed.nunique(),
    }


def _entries(row: Mapping[str, Any]) -> list[str]:
    above = row["share_above_0"]
    return [
        {"premise": "premise holds (share)"}.get(row["quantity"], row["quantity"].replace("_", " ")),
        model_title(row["model"]),
        span(Bar(row["mean"], row["low"], row["high"])),
        row["interval_over"],
        DASH if np.isnan(above) else f"{100 * above:.1f}",
        *(str(row[name]) for name in ("n", "examples", "seeds")),
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


def _unrecorded_notes(probes: pd.DataFrame) -> Iterator[str]:
    older = probes.drop(has_heads(probes).index).fingerprint
    if len(older):
        yield (
            f"Attention rows by layer and head: {_NOT_RECORDED} by {len(older)} older run"
            f"{'s' * (len(older) > 1)} of the sharpness probe ({', '.join(f[:12] for f in older)}); "
            "a run that is deleted in the ledger is done again, with them."
        )


def first_map(results: Results, analysis: str, name: str) -> tuple[str, pd.DataFrame, str] | None:
    """Model, map and fingerprint of one run: the last model in table order, its first seed."""
    runs = results.runs("probe", analysis=analysis)
    for model in reversed(model_order(runs.model)):
        for run in runs[runs.model == model].sort_values("seed").itertuples():
            table = results.table(run.record, name)
            if table is not None:
                return model, table, run.fingerprint
    return None


def draw_map(
    ax: Axes, title: str, mapped: tuple[str, pd.DataFrame, str] | None, heat: Heat, layers: Sequence[str]
) -> None:
    """The map of `first_map`, its rows named by the first of `layers`."""
    if mapped is None:
        nothing_here(ax, title)
        return
    model, frame, _ = mapped
    token_map(ax, f"{title} ({model_title(model)})", frame, heat, layers[: frame.layer.nunique()])


def with_probe_notes(results: Results, exhibit: Exhibit, analyses: tuple[str, ...]) -> Exhibit:
    wanted = [("probe", {"analysis": analysis}) for analysis in analyses]
    exhibit.missing = [*missing_notes(results, *wanted), *exhibit.missing]
    exhibit.notes += left_out_notes(results, "probe")
    return exhibit
