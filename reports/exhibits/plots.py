"""Drawing: one look for all figures, no global state."""

from __future__ import annotations

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
_RATE_TICKS = (0, 5, 10, 15, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
MOST_LABELS = 96  # token labels that can be read on one axis


class Bar(NamedTuple):
    """Shares: a value with its interval, and the paper's value or None."""

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


def nothing_here(ax: Axes, title: str) -> None:
    """A panel whose cells are missing says so."""
    style(ax, title)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, "cells missing", ha="center", va="center", color="#777777", transform=ax.transAxes)


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


def histograms(ax: Axes, title: str, x: str, values: Mapping[str, np.ndarray]) -> None:
    """One outlined histogram a model, over common bins, its mean as a vertical line."""
    everything = np.concatenate(list(values.values()))
    edges = np.histogram_bin_edges(everything, bins=min(40, max(10, len(everything) // 8)))
    for model, found in values.items():
        label = f"{model_title(model)}: mean {found.mean():.3g}, n={len(found)}"
        shared = {"color": colour(model), "density": True}
        ax.hist(found, edges, alpha=0.35, label=label, **shared)
        ax.hist(found, edges, histtype="step", linewidth=1.2, **shared)
        ax.axvline(found.mean(), color=colour(model), linewidth=1.8)
    ax.axvline(0, color=TEXT, linewidth=0.8, linestyle=":")
    ax.set_ylim(top=ax.get_ylim()[1] * 1.25)  # room for the legend
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.legend(fontsize=FONT - 2, frameon=False)
    style(ax, title, x, "density")


def token_map(ax: Axes, title: str, frame: pd.DataFrame, heat: Heat, layers: Sequence[str]) -> None:
    """A heat map, layer by token, with the tokens' text under the columns."""
    grid = frame.pivot(index="layer", columns="position", values=heat.column)
    image = ax.imshow(grid, aspect="auto", cmap=heat.colours, vmin=heat.low, interpolation="nearest")
    tokens = frame[frame.layer == frame.layer.min()].sort_values("position").token.tolist()
    shown = label_positions(tokens)
    ax.set_xticks(shown, [visible(tokens[i]) for i in shown], rotation=90, fontsize=6.5, color=TEXT)
    for tick, i in zip(ax.get_xticklabels(), shown, strict=True):
        if "_PAUSE_" in tokens[i]:
            tick.set_fontweight("bold")
            tick.set_color("#D55E00")
    ax.set_yticks(range(len(layers)), layers)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.01, fraction=0.03)
    bar.set_label(heat.label, fontsize=FONT - 1)
    bar.ax.tick_params(labelsize=FONT - 2)
    style(ax, title, "", "layer")
    ax.tick_params(axis="x", labelsize=6.5, length=2)
    ax.spines[["top", "right", "left", "bottom"]].set_visible(False)


def label_positions(tokens: Sequence[str]) -> list[int]:
    """All positions, or where those are too many to read: every pause token and every k-th one."""
    if len(tokens) <= MOST_LABELS:
        return list(range(len(tokens)))
    step = -(-len(tokens) // (MOST_LABELS // 2))
    pauses = [i for i, token in enumerate(tokens) if "_PAUSE_" in token]
    # A label next to a pause's would be drawn over it.
    others = [i for i in range(0, len(tokens), step) if all(abs(i - p) >= step / 2 for p in pauses)]
    return sorted({*others, *pauses})


def visible(token: str) -> str:
    """A token's text on one line, without what a font cannot draw and without mathtext."""
    text = token.strip().replace("\n", "⏎") or "␣"
    text = "".join(c if unicodedata.category(c)[0] != "C" else "·" for c in text)
    return text.replace("$", r"\$")[:14]


def rate_distortion_curves(ax: Axes, curves: Mapping[tuple[str, str], pd.DataFrame]) -> None:
    """(model, site) -> rate and distortion by beta; solid at the meta token, dashed at the other."""
    for (model, site), points in curves.items():
        at_meta = site == "meta"
        ax.plot(
            points.rate,
            points.distortion,
            color=colour(model),
            linestyle="-" if at_meta else "--",
            marker="o" if at_meta else "s",
            markerfacecolor=colour(model) if at_meta else "white",
            markersize=5,
            label=f"{model_title(model)}, {'last meta token' if at_meta else 'last non-meta token'}",
        )
    ax.set_xscale("symlog", linthresh=20)
    furthest = max(points.rate.max() for points in curves.values())
    ticks = [t for t in _RATE_TICKS if t <= furthest * 1.3]
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlim(0, max(furthest * 1.05, ticks[-1]))
    ax.grid(color="#e6e6e6", linewidth=0.8)
    ax.legend(fontsize=FONT - 1, frameon=False)
    style(ax, "Rate and distortion", "rate (nats; linear below 20, logarithmic above)", "distortion (nats)")
