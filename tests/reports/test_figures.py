"""Figures 2 and 3 of a ledger of three seeds whose every number is known, and of single seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.text import Text
from scipy.stats import t as student
from statsmodels.stats.proportion import proportion_confint

from metatok.experiment import Cell, Finetune, Home, Ledger, Preset, Probe, RateDistortion
from metatok.experiment.design import with_ancestors
from reports.exhibits.exhibit import Exhibit
from reports.exhibits.figures import figures
from reports.source.results import Results
from reports.source.runs import select

from .conftest import Small
from .ledgers import TAGS, small_preset

EXAMPLES, LAYERS, HEADS, KEYS = 4, 12, 12, 90
MODELS = ("meta_ape", "meta_rope")
PAGE = 1160 - 48  # pixels of a figure's width on the report's page
SEEDS = (0, 1, 2)
# By seed: mean 2 and standard deviation 1, so a half-width of t(2) / sqrt(3).
HALF = student.ppf(0.975, 2) / 3**0.5

Tables = dict[str, pa.Table]


def sharpness(seed: int) -> tuple[dict[str, float], Tables]:
    """Boost seed + 1, with 0.5 to either side by example; entropy as layer + head / 10 + seed; the premise
    holds in 3 of 4 examples of layer 0, head 0, and nowhere else."""
    example, layer, head = np.indices((EXAMPLES, LAYERS, HEADS)).reshape(3, -1)
    boost = seed + 1 + np.array([-0.5, 0.5, -0.5, 0.5])
    at = {"example": np.arange(EXAMPLES), "position": np.arange(EXAMPLES)}
    place = {"example": example, "layer": layer, "head": head}
    entropy = layer + head / 10 + seed
    tables = {
        "sharpness": pa.table(at | {"max_logit_boost": boost, "entropy_drop": boost / 10}),
        "attention_rows": pa.table(
            place
            | {
                "keys": np.full(len(example), KEYS),
                "entropy": entropy,
                "top_weight": np.full(len(example), 0.75),
            }
        ),
        "boost_effect": pa.table(place | {"premise": (layer == 0) & (head == 0) & (example < 3)}),
    }
    return {"attention_entropy/layer_0": 1.0, "premise_rate": 0.25, "n_attention_rows": len(example)}, tables


def attention() -> Tables:
    """All of layer 0 on the last key but one; heads between 0.25 and 0.75 on the first key in the others."""
    weight = np.zeros((LAYERS, KEYS))
    weight[0, -2], weight[1:, 0] = 1, 0.5
    lowest, highest = weight.copy(), weight.copy()
    lowest[1:, 0], highest[1:, 0] = 0.25, 0.75
    values = {"weight": weight, "lowest": lowest, "highest": highest}
    return {"attention_map": pa.table(_long(LAYERS) | {k: v.ravel() for k, v in values.items()})}


def residual() -> Tables:
    columns = _long(LAYERS + 1)
    return {"residual_map": pa.table(columns | {"similarity": np.linspace(-1, 1, len(columns["layer"]))})}


def _long(layers: int) -> dict[str, list]:
    tokens = [" _PAUSE_" if i in (40, 41, KEYS - 1) else f" word{i}" for i in range(KEYS)]
    return {
        "layer": np.repeat(np.arange(layers), KEYS).tolist(),
        "position": [*range(KEYS)] * layers,
        "token": tokens * layers,
    }


def outcome(cell: Cell) -> tuple[dict[str, float], Tables]:
    if isinstance(cell, RateDistortion):
        # One standard deviation over seeds of 1 nat in the rate, of 0.1 in the distortion.
        rate, distortion = 2 / cell.beta + cell.seed, 5 + cell.beta + 0.1 * cell.seed
        return {"rate": rate, "distortion": distortion, "n": 50, "rate_se": 0.5, "distortion_se": 0.01}, {}
    if isinstance(cell, Probe):
        if cell.analysis == "sharpness":
            return sharpness(cell.base.seed)
        return {}, attention() if cell.analysis == "attention" else residual()
    return {"validation_loss": 1.0}, {}


class Shown(NamedTuple):
    results: Results
    exhibits: dict[str, Exhibit]


Build = Callable[[tuple[int, ...]], Shown]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The figures of a ledger of probes and rate-distortion points with these seeds."""

    def made(seeds: tuple[int, ...]) -> Shown:
        small = small_preset()
        preset = small.model_copy(update={"models": MODELS, "seeds": seeds})
        wanted = [c for c in preset.cells() if isinstance(c, Probe | RateDistortion)]
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            return _figures(tmp_path_factory.mktemp("figures"), preset, with_ancestors(wanted))

    return made


def _figures(folder: Path, preset: Preset, cells: Iterable[Cell]) -> Shown:
    ledger = Ledger.open(Home.open(folder))
    for cell in cells:
        run = ledger.claim(cell, TAGS | {"preset": "small"})
        assert run is not None
        metrics, tables = outcome(cell)
        for name, table in tables.items():
            run.table(name, table)
        run.finish(metrics)
    results = Results(ledger, select(ledger, expected=preset))
    return Shown(results, {exhibit.name: exhibit for exhibit in figures(results)})


@pytest.fixture(scope="module")
def three(build: Build) -> Shown:
    return build(SEEDS)


@pytest.fixture(scope="module")
def one(build: Build) -> Shown:
    return build((1,))


def rows(exhibit: Exhibit, **labels: object) -> pd.DataFrame:
    frame = exhibit.data
    for name, value in labels.items():
        frame = frame[frame[name] == value]
    return frame


def test_several_seeds_are_the_unit_of_the_intervals(three: Shown) -> None:
    (boost,) = rows(three.exhibits["figure_2"], quantity="max_logit_boost", model="meta_rope").itertuples()
    assert (boost.mean, boost.low, boost.high) == pytest.approx((2, 2 - HALF, 2 + HALF))
    assert (boost.interval_over, boost.n, boost.examples, boost.seeds) == ("seeds", 12, 12, 3)
    (entropy,) = rows(
        three.exhibits["figure_2"], quantity="attention_entropy", model="meta_ape", layer=3, head=4
    ).itertuples()
    assert (entropy.mean, entropy.low) == pytest.approx((3.4 + 1, 3.4 + 1 - HALF))
    assert entropy.uniform == pytest.approx(np.log(KEYS))


def test_examples_are_the_unit_of_a_single_seed(one: Shown) -> None:
    (boost,) = rows(one.exhibits["figure_2"], quantity="max_logit_boost", model="meta_rope").itertuples()
    # 1.5, 2.5, 1.5, 2.5: standard deviation sqrt(1 / 3), four examples.
    half = student.ppf(0.975, 3) * (1 / 3) ** 0.5 / 2
    assert (boost.mean, boost.high - boost.mean, boost.interval_over) == pytest.approx((2, half, "examples"))
    (share,) = rows(
        one.exhibits["figure_2"], quantity="premise", model="meta_rope", layer=0, head=0
    ).itertuples()
    assert (share.mean, share.interval_over) == (0.75, "examples")
    assert (share.low, share.high) == pytest.approx(proportion_confint(3, 4, method="wilson"), abs=0.1)
    assert rows(one.exhibits["figure_2"], quantity="premise", layer=1)["mean"].tolist() == [0.0] * 2 * HEADS


def test_rates_are_told_by_seed_and_as_means_in_nats_and_bits(three: Shown) -> None:
    found = rows(three.exhibits["figure_3"], model="meta_ape", site="meta", beta=0.1)
    assert found.seed.tolist() == ["0", "1", "2", "mean"]
    assert found.rate_nats.tolist() == pytest.approx([20, 21, 22, 21])
    assert found.distortion_nats.tolist() == pytest.approx([5.1, 5.2, 5.3, 5.2])
    assert found.rate_bits.tolist() == pytest.approx(
        [20 / np.log(2), 21 / np.log(2), 22 / np.log(2), 21 / np.log(2)]
    )
    assert found.n.tolist() == [50] * 4
    mean = found.iloc[-1]
    assert (mean.rate_low_nats, mean.rate_high_bits) == pytest.approx((21 - HALF, (21 + HALF) / np.log(2)))
    assert mean.distortion_high_nats == pytest.approx(5.2 + 0.1 * HALF)
    assert (mean.interval_over, mean.seeds) == ("seeds", 3)
    # A thin curve a seed beside each mean: two models, two sites.
    axes = three.exhibits["figure_3"].figure.axes
    (panel,) = [ax for ax in axes if ax.get_title(loc="left") == "Rate and distortion"]
    assert sum(line.get_alpha() == 0.5 for line in panel.lines) == 4 * len(SEEDS)


def test_a_single_seeds_rates_have_intervals_over_examples(one: Shown) -> None:
    mean = rows(one.exhibits["figure_3"], model="meta_ape", site="meta", beta=0.1, seed="mean").iloc[0]
    assert mean.interval_over == "examples"
    assert mean.rate_high_nats - mean.rate_nats == pytest.approx(student.ppf(0.975, 49) * 0.5)
    assert any("don't say how seeds differ" in note for note in one.exhibits["figure_3"].notes)


def test_upper_axis_is_the_lower_in_bits(three: Shown) -> None:
    figure = three.exhibits["figure_3"].figure
    figure.canvas.draw()
    (nats,) = [ax for ax in figure.axes if ax.get_xlabel().startswith("rate (nats")]
    (bits,) = [ax for ax in figure.axes if ax.get_xlabel() == "rate (bits)"]
    for rate in (1.0, 19.0, 40.0):
        below, above = (
            ax.transData.transform((x, 6))[0] for ax, x in ((nats, rate), (bits, rate / np.log(2)))
        )
        assert below == pytest.approx(above, abs=0.01)


def test_the_map_tells_its_heads_and_the_other_examples(three: Shown) -> None:
    notes = three.exhibits["figure_3"].notes
    assert "layer 1: 1.00 (heads 1.00 to 1.00) on “word88”; layer 2: 0.50 (heads 0.25 to 0.75)" in notes[0]
    assert (
        "All 12 examples, each head by itself: the largest weight of a row is on average layer 1: 0.75"
        in notes[1]
    )


def test_older_runs_say_what_they_did_not_record(small: Small) -> None:
    second, third = small.exhibit("figure_2"), small.exhibit("figure_3")
    assert any("not recorded by 2 older runs" in note for note in second.notes)
    assert "not recorded" in {text.get_text() for text in second.figure.findobj(Text)}
    assert any("single heads not recorded" in note for note in third.notes)
    assert not small.report.results.unreadable


@pytest.mark.parametrize("name", ["figure_2", "figure_3"])
@pytest.mark.parametrize("seeds", ["one", "three"])
def test_text_is_large_enough_and_labels_do_not_overlap(
    name: str, seeds: str, request: pytest.FixtureRequest
) -> None:
    figure = request.getfixturevalue(seeds).exhibits[name].figure
    figure.canvas.draw()
    scale = PAGE / figure.get_figwidth() / 72  # pixels of the page a point
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    assert min(t.get_fontsize() for t in texts) * scale >= 11
    for ax in figure.axes:
        for axis, side in ((ax.xaxis, "x"), (ax.yaxis, "y")):
            boxes = [t.get_window_extent() for t in axis.get_ticklabels() if t.get_text() and t.get_visible()]
            spans = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes)
            overlaps = [high - low for (_, high), (low, _) in pairwise(spans)]
            assert max(overlaps, default=0) <= 1.0, (ax.get_title(loc="left"), side)


def test_models_differ_in_more_than_colour(three: Shown) -> None:
    (panel,) = [
        ax
        for ax in three.exhibits["figure_2"].figure.axes
        if ax.get_title(loc="left").startswith("Entropy of")
    ]
    assert len({points[0].get_marker() for points in panel.containers}) == len(MODELS)


def test_fine_tunes_alone_leave_the_panels_empty(tmp_path: Path) -> None:
    preset = small_preset()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        cells = [c for c in with_ancestors(preset.cells()) if isinstance(c, Finetune)][:1]
        shown = _figures(tmp_path, preset, with_ancestors(cells))
    assert shown.exhibits["figure_2"].is_empty
    assert shown.exhibits["figure_3"].is_empty
