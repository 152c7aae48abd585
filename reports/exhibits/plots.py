"""Drawing: one look for all figures, no global state."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from reports.exhibits.exhibit import MAJORITY, model_order, model_title

# Okabe and Ito's palette, which the colour-blind can tell apart; each model keeps its colour everywhere.
_COLOURS = {
    "gpt2_ape": "#999999",
    "gpt2_rope": "#666666",
    "meta_ape": "#0072B2",
    "meta_rope": "#D55E00",
    "pause_ape": "#56B4E9",
    "pause_rope": "#E69F00",
    "wide_ape": "#009E73",
    "wide_rope": "#CC79A7",
}
_OTHERS = ("#F0E442", "#000000", "#332288", "#882255", "#44AA99", "#999933")
TEXT = "#222222"
FONT = 10
LN2 = math.log(2)  # nats in a bit
SMALL = 8  # points; 11 pixels of a figure 11 inches wide on the report's page
_RATE_TICKS = (0, 5, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_LINEAR_NATS = 20  # the paper's symlog axis is linear below
MOST_LABELS = 80  # token labels that can be read on one axis
# So that a figure in grey tells models apart too.
_MARKERS = {"ape": "o", "rope": "s", "nope": "^", "alibi": "v"}
_DASHES = {"ape": "-", "rope": "--", "nope": "-.", "alibi": ":"}


class Bar(NamedTuple):
    """A value with its interval, and the paper's value or None."""

    value: float
    low: float
    high: float
    paper: float | None = None


class Heat(NamedTuple):
    """What a heat map shows: a column, its name on the scale, a colour map, and where the scale begins."""

    column: str
    label: str
    colours: str
    low: float | None = None


def colour(model: str) -> str:
    if model in _COLOURS:
        return _COLOURS[model]
    return _OTHERS[sum(map(ord, model)) % len(_OTHERS)]


def marker(model: str) -> str:
    return _MARKERS.get(_position(model), "D")


def dashes(model: str) -> str:
    return _DASHES.get(_position(model), "-")


def _position(model: str) -> str:
    return model.split("_")[1] if "_" in model else ""


def new_figure(width: float, height: float) -> Figure:
    """A figure with a canvas of its own, so that nothing of pyplot is touched."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    ax.set_title(title, fontsize=FONT + 1, color=TEXT, loc="left")
    ax.set_xlabel(x, fontsize=FONT, color=TEXT)
    ax.set_ylabel(y, fontsize=FONT, color=TEXT)
    ax.tick_params(labelsize=FONT - 1, colors=TEXT)
    ax.spines[["top", "right"]].set_visible(False)


def nothing_here(ax: Axes, title: str, why: str = "cells missing") -> None:
    """A panel without numbers says why."""
    style(ax, title)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, why, ha="center", va="center", color="#777777", transform=ax.transAxes)


def accuracy_bars(ax: Axes, title: str, bars: Mapping[tuple[str, int], Bar], majority: float | None) -> None:
    """Bars by model within train lengths; (model, train length) -> Bar."""
    models = model_order(m for m, _ in bars)
    lengths = sorted({t for _, t in bars})
    width = 0.8 / len(models)
    for (model, length), bar in bars.items():
        offset = (models.index(model) - (len(models) - 1) / 2) * width
        _bar(ax, lengths.index(length) + offset, width * 0.92, bar, model)
    if majority is not None:
        ax.axhline(majority, color=TEXT, linestyle="--", linewidth=1)
    ax.set_xticks(range(len(lengths)), [str(n) for n in lengths])
    ax.set_ylim(0, 1.05)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    ax.set_axisbelow(True)
    style(ax, title, "train length (tokens)", "exact match")


def _bar(ax: Axes, x: float, width: float, bar: Bar, model: str) -> None:
    # The edge keeps a bar of height 0 visible.
    ax.bar(
        x,
        bar.value,
        width,
        color=colour(model),
        edgecolor=colour(model),
        linewidth=2,
        label=model_title(model),
    )
    error = [[max(bar.value - bar.low, 0)], [max(bar.high - bar.value, 0)]]
    ax.errorbar(x, bar.value, error, color=TEXT, capsize=2.5, linewidth=1)
    if bar.paper is not None:
        ax.plot(x, bar.paper, "D", markersize=6, markerfacecolor="white", markeredgecolor=TEXT, zorder=5)


def accuracy_marks() -> dict[str, Line2D]:
    """Legend entries for the marks that all panels share."""
    paper = {"marker": "D", "linestyle": "", "markerfacecolor": "white", "markeredgecolor": TEXT}
    return {
        "the paper": Line2D([], [], **paper),
        MAJORITY: Line2D([], [], color=TEXT, linestyle="--", linewidth=1),
    }


def histograms(
    ax: Axes, title: str, x: str, values: Mapping[str, np.ndarray], means: Mapping[str, Bar]
) -> None:
    """One outlined histogram a model over common bins; its mean as a line, the mean's interval as a band."""
    everything = np.concatenate(list(values.values()))
    edges = np.histogram_bin_edges(everything, bins=min(40, max(10, len(everything) // 8)))
    for model, found in values.items():
        mean, shared = means[model], {"color": colour(model), "density": True}
        label = f"{model_title(model)}: {span(mean)}, n={len(found)}"
        ax.hist(found, edges, alpha=0.25, **shared)
        ax.hist(found, edges, histtype="step", linewidth=1.2, linestyle=dashes(model), **shared)
        ax.axvline(mean.value, color=colour(model), linewidth=1.8, linestyle=dashes(model), label=label)
        if np.isfinite(mean.low):
            ax.axvspan(mean.low, mean.high, color=colour(model), alpha=0.2, linewidth=0)
    ax.axvline(0, color=TEXT, linewidth=0.8, linestyle=":")
    ax.set_ylim(top=ax.get_ylim()[1] * (1.08 + 0.13 * len(values)))  # room for the legend
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.legend(fontsize=SMALL, loc="upper left", facecolor="white", framealpha=0.9, edgecolor="none")
    style(ax, title, x, "density")


def span(bar: Bar) -> str:
    """A mean and its interval, or that there is none."""
    ends = f"[{bar.low:.3g}, {bar.high:.3g}]" if np.isfinite(bar.low) else "[no interval]"
    return f"{bar.value:.3g} {ends}".replace("-", "−")


def by_head(ax: Axes, title: str, label: str, frame: pd.DataFrame, uniform: float | None = None) -> None:
    """A point with its interval for each head, layer after layer, models beside each other.

    frame: model, layer, head, mean, low, high. uniform: a level to compare with, as a dashed line.
    """
    models, layers = model_order(frame.model), frame.layer.max() + 1
    slots = len(models) * (frame["head"].max() + 1)
    for i, model in enumerate(models):
        mine = frame[frame.model == model]
        slot = mine["head"] * len(models) + i
        x = mine.layer + (slot - (slots - 1) / 2) * 0.8 / slots
        error = [(mine["mean"] - mine.low).clip(lower=0), (mine.high - mine["mean"]).clip(lower=0)]
        size = 5 if slots <= 8 else 3
        ax.errorbar(
            x, mine["mean"], error, fmt=marker(model), markersize=size, color=colour(model), linewidth=1,
            capsize=2 if slots <= 8 else 0, label=model_title(model),
        )  # fmt: skip
    if uniform is not None:
        ax.axhline(uniform, color=TEXT, linestyle="--", linewidth=1, label="all keys alike: ln T")
    for edge in range(1, layers):
        ax.axvline(edge - 0.5, color="#cccccc", linewidth=0.8)
    ax.set_xlim(-0.5, layers - 0.5)
    ax.set_xticks(range(layers), [str(n + 1) for n in range(layers)])
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.legend(fontsize=SMALL, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.99), ncols=6)
    style(ax, title, "layer; within it, head by head", label)


def token_map(ax: Axes, title: str, frame: pd.DataFrame, heat: Heat, layers: Sequence[str]) -> None:
    """A heat map, layer by token, with the tokens' text under the columns."""
    grid = frame.pivot(index="layer", columns="position", values=heat.column)
    image = ax.imshow(grid, aspect="auto", cmap=heat.colours, vmin=heat.low, interpolation="nearest")
    tokens = frame[frame.layer == frame.layer.min()].sort_values("position").token.tolist()
    shown = label_positions(tokens)
    ax.set_xticks(shown, [visible(tokens[i]) for i in shown], rotation=90, fontsize=SMALL, color=TEXT)
    for tick, i in zip(ax.get_xticklabels(), shown, strict=True):
        if "_PAUSE_" in tokens[i]:
            tick.set_fontweight("bold")
            tick.set_color("#D55E00")
    ax.set_yticks(range(len(layers)), layers)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.01, fraction=0.03)
    bar.set_label(heat.label, fontsize=FONT - 1)
    bar.ax.tick_params(labelsize=SMALL)
    style(ax, title, "", "layer")
    ax.tick_params(axis="x", labelsize=SMALL, length=2)
    ax.spines[["top", "right", "left", "bottom"]].set_visible(False)


def label_positions(tokens: Sequence[str]) -> list[int]:
    """All positions, or where those are too many to read: the pause tokens and every k-th one.

    Of pause tokens too close for both labels the later has one.
    """
    if len(tokens) <= MOST_LABELS:
        return list(range(len(tokens)))
    step = -(-len(tokens) // (MOST_LABELS // 2))
    pauses: list[int] = []
    for i in reversed(range(len(tokens))):
        if "_PAUSE_" in tokens[i] and (not pauses or (pauses[-1] - i) * MOST_LABELS >= len(tokens)):
            pauses.append(i)
    # A label next to a pause's would be drawn over it.
    others = [i for i in range(0, len(tokens), step) if all(abs(i - p) >= step / 2 for p in pauses)]
    return sorted({*others, *pauses})


def visible(token: str) -> str:
    """A token's text on one line, without what a font cannot draw and without mathtext."""
    text = token.strip().replace("\n", "⏎") or "␣"
    text = "".join(c if unicodedata.category(c)[0] != "C" else "·" for c in text)
    return text.replace("$", r"\$")[:14]


def rate_distortion_curves(
    ax: Axes, means: Mapping[tuple[str, str], pd.DataFrame], seeds: Sequence[tuple[str, str, pd.DataFrame]]
) -> None:
    """Rate and distortion by beta: a mean with intervals for each (model, site), and each seed's own curve.

    means: rate_nats, distortion_nats, each also with _low and _high. seeds: (model, site, curve), drawn thin.
    Solid at the meta token, dashed at the other. The upper axis is the rate in bits.
    """
    for model, site, curve in seeds:
        look = {"linestyle": "-" if site == "meta" else "--", "color": colour(model)}
        ax.plot(curve.rate_nats, curve.distortion_nats, linewidth=0.7, alpha=0.5, **look)
    for (model, site), curve in means.items():
        at_meta = site == "meta"
        errors = {
            f"{axis}err": [
                (curve[f"{name}_nats"] - curve[f"{name}_low_nats"].clip(lower=0)).clip(lower=0),
                (curve[f"{name}_high_nats"] - curve[f"{name}_nats"]).clip(lower=0),
            ]
            for axis, name in (("x", "rate"), ("y", "distortion"))
        }
        ax.errorbar(
            curve.rate_nats, curve.distortion_nats, **errors, color=colour(model), elinewidth=0.9, capsize=2,
            linestyle="-" if at_meta else "--", marker=marker(model), markersize=6,
            markerfacecolor=colour(model) if at_meta else "white",
            label=f"{model_title(model)}, {'last meta token' if at_meta else 'last non-meta token'}",
        )  # fmt: skip
    ax.grid(color="#e6e6e6", linewidth=0.8)
    ax.legend(fontsize=FONT - 1, frameon=False)
    style(ax, "Rate and distortion", "rate (nats; linear below 20, logarithmic above)", "distortion (nats)")
    _rate_axes(ax, max(curve.rate_nats.max() for curve in means.values()))


def _rate_axes(ax: Axes, furthest: float) -> None:
    """The paper's symlog axis in nats, and the same in bits on top: linear below 20 nats in both."""
    top = ax.twiny()
    nats = [t for t in _RATE_TICKS if t <= furthest * 1.3]
    bits = [t for t in _RATE_TICKS if t <= furthest * 1.3 / LN2]
    right = max(furthest * 1.1, nats[-1])
    for axis, unit, ticks in ((ax, 1.0, nats), (top, LN2, bits)):
        axis.set_xscale("symlog", linthresh=_LINEAR_NATS / unit)
        axis.set_xticks(ticks, [f"{t:,}" for t in ticks])
        axis.set_xticks([], minor=True)
        axis.set_xlim(0, right / unit)
    style(top, "", "rate (bits)")
    top.spines["top"].set_visible(True)
