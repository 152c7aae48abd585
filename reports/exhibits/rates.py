"""Figure 3: the attention row at a pause, and rate against distortion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from reports.exhibits.exhibit import Exhibit, left_out_notes, missing_notes, model_order, model_title
from reports.exhibits.plots import (
    LN2,
    Bar,
    Heat,
    new_figure,
    nothing_here,
    rate_distortion_curves,
    span,
    visible,
)
from reports.exhibits.probes import (
    LAYERS,
    PROBE_CAPTION,
    Mean,
    by_model,
    draw_map,
    first_map,
    has_heads,
    mean_of,
    with_probe_notes,
)
from reports.source.results import Results
from reports.stats import ALPHA, mean_of_seeds

_SITES = {"meta": "last meta token", "last_non_meta": "last non-meta token"}
_QUANTITIES = ("rate", "distortion")
_MEAN = "mean"  # stands in the column of the seed


def attention_and_rate_figure(results: Results) -> Exhibit:
    """Figure 3: the attention row at a pause, and rate against distortion."""
    figure = new_figure(11, 8.6)
    layout = figure.subplot_mosaic([["map"], ["curve"]], height_ratios=[1, 1.7])
    mapped = first_map(results, "attention", "attention_map")
    title = "Causal attention at one example's last _PAUSE_, mean over heads"
    draw_map(layout["map"], title, mapped, Heat("weight", "weight", "magma", 0.0), LAYERS)
    points = results.runs("rate_distortion")
    data = curve_rows(points)
    means = data[data.seed == _MEAN]
    if len(means):
        curves = dict(iter(means.groupby(["model", "site"], sort=False)))
        several = data[(data.seed != _MEAN) & (data.seeds_of_curve > 1)]
        each = several.groupby(["model", "site", "seed"], sort=False)
        rate_distortion_curves(layout["curve"], curves, [(m, s, curve) for (m, s, _), curve in each])
    else:
        nothing_here(layout["curve"], "Rate and distortion")
    exhibit = Exhibit(
        "figure_3",
        "Where a meta token looks, and how much it holds",
        _caption(),
        _rate_frame(means),
        labels=3,
        data=data.drop(columns="seeds_of_curve"),
        notes=[*_map_notes(results, mapped), *_rate_notes(means)],
        missing=missing_notes(results, ("rate_distortion", {})),
        runs=[*([mapped[2]] if mapped else []), *points.fingerprint],
        paper=results.reference.block("figure_3"),
        figure=figure,
    )
    exhibit.notes += left_out_notes(results, "rate_distortion")
    return with_probe_notes(results, exhibit, ("attention",))


def _caption() -> str:
    return (
        "Top (the paper's left): attention of one example's last meta token, layer by position "
        f"({PROBE_CAPTION}): a single example, the mean over heads, no interval. Bottom (the paper's right): "
        "a variational bottleneck on the frozen pre-trained model's last layer, at the last meta token and "
        "at the last non-meta token, one point a beta; rate = KL, distortion = cross-entropy, both on the "
        "examples it is fitted on, as in the paper. Bars: 95% intervals of both; thin lines: each seed's own "
        "curve, where there are several. Upper axis: the rate in bits."
    )


def curve_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each model, site, beta and seed, and one for the mean over seeds, in nats and in bits.

    The mean has t intervals over seeds; of a single seed over the examples of the fit, where the run kept
    its standard errors, and else none.
    """
    rows = []
    for model in model_order(runs.model):
        for site in _SITES:
            mine = runs[(runs.model == model) & (runs.site == site)]
            for beta, group in mine.assign(beta=mine.beta.astype(float)).groupby("beta"):
                place = {"model": model, "site": site, "beta": beta}
                each = group.sort_values("seed").itertuples()
                metrics = {str(run.seed): run.record.metrics for run in each}
                for seed, found in metrics.items():
                    values = {name: Mean(found[name], np.nan, np.nan, "") for name in _QUANTITIES}
                    rows.append(place | {"seed": seed} | _numbers(values, [found]))
                values = {name: _mean(list(metrics.values()), name) for name in _QUANTITIES}
                rows.append(place | {"seed": _MEAN} | _numbers(values, list(metrics.values())))
    columns = ["model", "site", "beta", "seed", "seeds", "n", "interval_over"]
    frame = pd.DataFrame(rows, columns=None if rows else columns)
    return frame.assign(seeds_of_curve=frame.groupby(["model", "site"]).seeds.transform("max"))


def _numbers(values: Mapping[str, Mean], metrics: list[Mapping[str, float]]) -> dict[str, Any]:
    """Columns of one row: n examples a seed, and each quantity with its interval in both units."""
    row: dict[str, Any] = {"seeds": len(metrics), "n": int(metrics[0]["n"])}
    row["interval_over"] = values["rate"].over
    for name, mean in values.items():
        ends = {"": mean.value, "_low": mean.low, "_high": mean.high}
        for unit, nats in (("nats", 1.0), ("bits", LN2)):
            row |= {f"{name}{end}_{unit}": value / nats for end, value in ends.items()}
    return row


def _mean(metrics: list[Mapping[str, float]], name: str) -> Mean:
    if len(metrics) > 1:
        return Mean(*mean_of_seeds([m[name] for m in metrics]), "seeds")
    (only,) = metrics
    error = only.get(f"{name}_se", np.nan)
    half = float(student.ppf(1 - ALPHA / 2, only["n"] - 1)) * error
    over = "examples" if np.isfinite(error) else ""
    return Mean(only[name], only[name] - half, only[name] + half, over)


def _rate_frame(means: pd.DataFrame) -> pd.DataFrame:
    """The points of the mean curves as they are shown."""
    rows = [
        [
            model_title(p["model"]),
            _SITES[p["site"]],
            f"{p['beta']:g}",
            *(
                span(Bar(*(p[f"{name}{end}_{unit}"] for end in ("", "_low", "_high"))))
                for name, unit in (("rate", "nats"), ("rate", "bits"), ("distortion", "nats"))
            ),
            p["interval_over"] or "not recorded",
            str(p["n"]),
            str(p["seeds"]),
        ]
        for p in means.to_dict("records")
    ]
    heads = ["rate (nats)", "rate (bits)", "distortion (nats)", "interval over", "n examples", "seeds"]
    return pd.DataFrame(rows, columns=["model", "site", "beta", *heads])


def _rate_notes(means: pd.DataFrame) -> Iterator[str]:
    over = set(means.interval_over)
    if "seeds" in over:
        yield "Several seeds: rate and distortion are means over seeds, with t intervals over seeds."
    if "examples" in over:
        yield "One seed: t intervals over the examples of the fit; they don't say how seeds differ."
    if "" in over:
        yield "No interval: a single seed, by a run that did not record standard errors over examples."


def _map_notes(results: Results, mapped: tuple[str, pd.DataFrame, str] | None) -> Iterator[str]:
    """The map's largest weights with the heads behind them, and whether other examples are alike."""
    if mapped is None:
        return
    model, frame, _ = mapped
    top = frame.loc[frame.groupby("layer").weight.idxmax()]
    if "highest" in frame:
        heads = "; ".join(
            f"layer {p.layer + 1}: {p.weight:.2f} (heads {p.lowest:.2f} to {p.highest:.2f}) on "
            f"“{visible(p.token)}”"
            for p in top.itertuples()
        )
    else:
        heads = "; ".join(
            f"layer {p.layer + 1}: {p.weight:.2f} on “{visible(p.token)}”" for p in top.itertuples()
        )
        heads += "; single heads not recorded"
    yield f"Largest weights of the map: {heads}."
    probes = results.runs("probe", analysis="sharpness")
    table = by_model(results, has_heads(probes[probes.model == model]), "attention_rows").get(model)
    if table is None:
        yield "The largest weight over all examples, head by head: not recorded."
        return
    shares = "; ".join(
        f"layer {layer + 1}: {span(Bar(*mean_of(mine.top_weight, mine)[:3]))}"
        for layer, mine in table.groupby("layer")
    )
    n = len(table[["seed", "example"]].drop_duplicates())
    yield f"All {n} examples, each head by itself: the largest weight of a row is on average {shares}."
