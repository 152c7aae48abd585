"""What each claim of the paper rests on, taken from the results: one function a claim or kind of claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from metatok.experiment.design.preset import PUBLISHED
from reports.exhibits.exhibit import TASK_NAMES, model_order, model_title, signed
from reports.exhibits.grid import TASKS
from reports.source.comparisons import (
    CONTRASTS,
    Comparison,
    Contrast,
    ControlCell,
    compare,
    control_cells,
    mean_difference,
)
from reports.source.results import Key, Results
from reports.source.runs import is_extended
from reports.stats import Sample, over_seeds
from reports.verdict import BETTER, NOT_WORSE, POSITIVE, Bar, Evidence, Part

SLOWDOWN = 1.11  # the paper's, Table 3
_RATES = 5  # at which two curves are compared
_MEDIAN_ERROR = math.sqrt(math.pi / 2) / 1.349  # standard error of a normal sample's median, in IQR / sqrt n


class Finding(NamedTuple):
    """measured: what, in a phrase. evidence: the numbers. why_not: the reason if there is none."""

    measured: str
    evidence: Evidence
    why_not: str = "no cell of it is in the ledger"


def by_question(cells: Sequence[ControlCell], contrast: Contrast) -> Finding:
    """A question that a control answers: the mean over all its cells that test something."""
    mine = [cell for cell in cells if cell.contrast == contrast]
    told = sum(cell.tested is not None for cell in mine)
    part = _points("all cells", [cell.tested for cell in mine if cell.tested is not None])
    nothing = sum(bool(cell.nothing) for cell in mine)
    positions = " and ".join(dict.fromkeys(cell.position.upper() for cell in mine)).replace("ROPE", "RoPE")
    measured = (
        f"{contrast.treated} minus {contrast.control} in points of exact match, mean over the {told} of "
        f"{len(mine)} cells of task, train and eval length ({positions}) that can say something; {nothing} "
        "test nothing"
        if mine
        else f"{contrast.treated} minus {contrast.control} in points of exact match"
    )
    why_not = (
        f"{contrast.treated}_* and {contrast.control}_* are not both in the ledger"
        if not mine
        else "all cells test nothing"
        if nothing == len(mine)
        else "fewer than 2 seeds have every cell"
    )
    return Finding(measured, Evidence(BETTER, _some(part)), why_not)


def meta_beats_baselines(results: Results, cells: Sequence[ControlCell]) -> Finding:
    """Claim 1: on every task and train length, at the mean over the eval lengths that test something."""
    together = CONTRASTS[-1]
    published = [Contrast(together.question, together.treated, name) for name in PUBLISHED]
    mine = [c for c in cells if c.contrast == together] + control_cells(results, TASKS, published)
    places: dict[str, list[ControlCell]] = {}
    for cell in mine:
        models = f"{model_title(cell.treated.model)} against {model_title(cell.control.model)}"
        place = f"{models}, {_task(cell.treated.task)}, train length {cell.treated.train_length}"
        places.setdefault(place, []).append(cell)
    positions = {c.position for c in mine}
    metas = {m for m in results.runs("finetune").model if _is_meta(m) and not is_extended(m)}
    lone = [f"{model_title(m)} has no baseline" for m in sorted(metas) if m.split("_")[1] not in positions]
    lone += [f"{_task(task)} was not scored" for task in TASKS if task not in {c.treated.task for c in mine}]
    parts, gaps = _each(places, lambda found: [c.tested for c in found if c.tested is not None])
    measured = (
        "meta minus GPT-2 of the same position (and GPT-Neo, if there), points of exact match, every task"
    )
    return Finding(measured + " and train length", Evidence(BETTER, parts, (*gaps, *lone)), _few(places))


def gain_with_train_length(results: Results, cells: Sequence[ControlCell]) -> Finding:
    """Claim 2: how much more meta gains than GPT-2 from the shortest train length to the longest."""
    found: dict[tuple[str, str, int], dict[int, ControlCell]] = {}
    for cell in (c for c in cells if c.contrast == CONTRASTS[-1]):
        place = (cell.position, cell.treated.task, cell.treated.eval_length)
        found.setdefault(place, {})[cell.treated.train_length] = cell
    steps: list[tuple[Comparison, Comparison]] = []
    for by_length in found.values():
        first, last = (by_length[pick(by_length)] for pick in (min, max))
        keys = (first.treated, first.control, last.treated, last.control)
        if first is last or first.comparison is None or last.comparison is None:
            continue
        if not results.tests_nothing(keys) and results.standing(first.treated) != "ceiling":
            steps.append((first.comparison, last.comparison))
    sample, n = _mean_step(steps), sum(first.n + last.n for first, last in steps)
    part = None if sample is None else Part("all cells", sample, n, _in_points(sample))
    measured = (
        "meta's gain minus GPT-2's from the shortest to the longest train length, points of exact match, "
        f"mean over {len(steps)} of {len(found)} cells; left out: all at base rate or ceiling, or meta "
        "at its ceiling from the start"
    )
    return Finding(
        measured, Evidence(BETTER, _some(part)), "no two train lengths where something can be gained"
    )


def no_pos_is_as_good(results: Results) -> Finding:
    """Claim 3: no pos minus full, every model and task but segment counting."""
    tasks = [task for task in TASKS if task != "segment_counting"]
    measured = "no pos minus full, points of exact match, every meta model and task but segment counting"
    return _ablations(results, tasks, "no_pos", NOT_WORSE, sign=1, measured=measured)


def no_embed_hurts(results: Results) -> Finding:
    """Claim 4: full minus no embed, every model on list recall, counting and copying."""
    tasks = [task for task in TASKS if task != "parity"]
    measured = (
        "full minus no embed, points of exact match, every meta model on list recall, counting, copying"
    )
    return _ablations(results, tasks, "no_embed", BETTER, sign=-1, measured=measured)


def _ablations(
    results: Results, tasks: Sequence[str], setting: str, bar: Bar, sign: int, measured: str
) -> Finding:
    """A part a model and task, the mean over train and eval lengths where the two can differ."""
    places: dict[str, list[tuple[Key, Key]]] = {}
    for key in sorted(results.exact):
        if key.task in tasks and key.setting == setting and _is_meta(key.model):
            full = key._replace(setting="full")
            pair = (key, full) if sign > 0 else (full, key)
            places.setdefault(f"{model_title(key.model)}, {_task(key.task)}", []).append(pair)

    def comparisons(pairs: list[tuple[Key, Key]]) -> list[Comparison]:
        useful = [pair for pair in pairs if not results.tests_nothing(pair)]
        return [c for pair in useful if (c := compare(results, *pair)) is not None and c.seeds > 1]

    parts, gaps = _each(places, comparisons)
    known = {key.task for key in results.exact if key.setting == setting and _is_meta(key.model)}
    gaps += tuple(f"{_task(task)} was not scored" for task in tasks if task not in known)
    return Finding(measured, Evidence(bar, parts, gaps), _few(places))


def sharpening(results: Results, column: str, measured: str) -> Finding:
    """Claims 5 and 6: the mean of a sharpness column is above 0, every model."""
    runs = results.runs("probe", analysis="sharpness")
    parts = []
    for model in filter(_is_meta, model_order(runs.model)):
        read = [results.table(r, "sharpness") for r in runs.record[runs.model == model]]
        tables = [t for t in read if t is not None and len(t)]
        if tables:
            by_example = [t.groupby("example")[column].mean() for t in tables]
            sample = over_seeds([t[column].mean() for t in tables], [means.sem() for means in by_example])
            n = sum(map(len, tables))
            parts.append(Part(model_title(model), sample, n, _plain(sample, " nats")))
    return Finding(measured, Evidence(POSITIVE, tuple(parts)), _one_seed(parts))


def curve_below_curve(results: Results) -> Finding:
    """Claim 7: the distortion at the last non-meta token minus that at the meta token, at every rate."""
    runs = results.runs("rate_distortion")
    parts: list[Part] = []
    gaps: list[str] = []
    for model in filter(_is_meta, model_order(runs.model)):
        curves = [_two_curves(mine) for _, mine in runs[runs.model == model].groupby("seed")]
        whole = [pair for pair in curves if pair is not None]
        rates = _shared_rates(whole)
        if not rates:
            gaps.append(f"{model_title(model)}: the curves share no rate")
        n = round(sum(r.metrics.get("n", 0) for r in runs.record[runs.model == model]) / max(len(rates), 1))
        for rate in rates:
            sample = over_seeds([np.interp(rate, *last) - np.interp(rate, *meta) for meta, last in whole])
            parts.append(Part(f"{model_title(model)} at {rate:.3g} nats", sample, n, _plain(sample, " nats")))
    measured = (
        "distortion at the last non-meta token minus that at the meta token, nats, at "
        f"{_RATES} rates that all curves share, between points by straight lines"
    )
    return Finding(measured, Evidence(POSITIVE, tuple(parts), tuple(gaps)), _one_seed(parts))


def _two_curves(runs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray] | None:
    """One seed's curves, at the meta token and at the last other: each (2, points), by ascending rate."""
    points = pd.DataFrame(
        [{k: r.metrics[k] for k in ("rate", "distortion")} for r in runs.record], runs.index
    )
    curves = [
        points[runs.site == site].sort_values("rate").to_numpy().T for site in ("meta", "last_non_meta")
    ]
    return (curves[0], curves[1]) if all(c.shape[1] > 1 for c in curves) else None


def _shared_rates(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Rates between the largest first and the smallest last one of all curves."""
    ends = [(curve[0, 0], curve[0, -1]) for pair in curves for curve in pair]
    low, high = max((a for a, _ in ends), default=0.0), min((b for _, b in ends), default=0.0)
    return np.linspace(low, high, _RATES).tolist() if low < high else []


def extension_holds(results: Results) -> Finding:
    """Claim 8: token accuracy at the extended context minus that at half of it, the train length."""
    extended = {
        m: results.contexts.get(m, ("", 0))[1] for m in results.runs("finetune").model if is_extended(m)
    }
    model = max(extended, key=lambda m: extended[m], default="")
    context = extended.get(model, 0)
    lengths = {k.train_length for k in results.token if k.model == model and k.train_length < context}
    train = max((n for n in lengths if 2 * n <= context), default=0)
    parts, gaps = [], []
    for task in sorted({k.task for k in results.token if (k.model, k.train_length) == (model, train)}):
        near, far = (Key(model, task, train, length) for length in (train, context))
        if near not in results.token or far not in results.token:
            gaps.append(f"{_task(task)} is not scored at {train} and {context}")
        elif results.standing(near) == "base rate":
            gaps.append(f"{_task(task)} at its base rate already at {train}")
        else:
            sample, n = _token_difference(results, near, far)
            parts.append(Part(_task(task), sample, n, _in_points(sample)))
    if not train:
        measured = "token accuracy at the extended context minus that at half of it, points, every task"
        return Finding(
            measured, Evidence(NOT_WORSE), "no extended model is fine-tuned to half its context or less"
        )
    measured = f"token accuracy at {context} minus that at {train}, points, "
    measured += f"{model_title(model)}, trained to {train}, every task"
    why_not = "; ".join(gaps) if gaps and not parts else _one_seed(parts)
    return Finding(measured, Evidence(NOT_WORSE, tuple(parts), tuple(gaps)), why_not)


def _token_difference(results: Results, near: Key, far: Key) -> tuple[Sample, int]:
    """Far minus near, by seed, of the share of answer tokens right; and the examples of both."""
    values, errors, n = [], [], 0
    for record in results.records_at(near).values():
        tables = [results.examples(record, key.eval_length) for key in (near, far)]
        shares = [t.correct_tokens / t.answer_tokens for t in tables if t is not None]
        if len(shares) == 2:
            values.append(shares[1].mean() - shares[0].mean())
            errors.append(math.hypot(*(s.sem() for s in shares)))
            n += sum(map(len, shares))
    return over_seeds(values, errors), n


def slowdown(results: Results) -> Finding:
    """Claim 9: the paper's slowdown minus the measured one, every model and size; repeats are the unit."""
    parts = []
    for run in results.runs("efficiency").itertuples():
        metrics = run.record.metrics
        names = [f"slowdown_{part}" for part in ("median", "q25", "q75", "n")]
        if _is_meta(run.model) and {*names} <= set(metrics):
            median, low, high, n = (metrics[name] for name in names)
            error = _MEDIAN_ERROR * (high - low) / math.sqrt(n)
            sample = Sample(SLOWDOWN - median, error, round(n) - 1)
            value, least, most = sample.estimate
            text = f"{SLOWDOWN - value:.3f} [{SLOWDOWN - most:.3f}, {SLOWDOWN - least:.3f}]"
            parts.append(Part(f"{model_title(run.model)}, {run.size}", sample, round(n), text))
    measured = (
        "median slowdown of generation with meta tokens, every meta model and size; interval over "
        "interleaved repeats, from their quartiles"
    )
    return Finding(
        measured,
        Evidence(Bar(0.0, 0.0, f"slowdown below {SLOWDOWN}; no margin"), tuple(parts), units="repeats"),
    )


def boost_lowers_entropy(results: Results) -> Finding:
    """Claim 10: how far the share of attention rows whose entropy a boost lowers is below 1, every model."""
    runs = results.runs("probe", analysis="sharpness")
    parts, premises = [], []
    for model in filter(_is_meta, model_order(runs.model)):
        metrics = [r.metrics for r in runs.record[runs.model == model] if "entropy_fall_rate" in r.metrics]
        if metrics:
            sample = over_seeds([m["entropy_fall_rate"] - 1 for m in metrics])
            value, low, high = (100 * (1 + x) for x in sample.estimate)
            n = round(sum(m["n_attention_rows"] for m in metrics))
            parts.append(Part(model_title(model), sample, n, f"{value:.1f}% [{low:.1f}, {high:.1f}]"))
            premise = 100 * np.mean([m["premise_rate"] for m in metrics])
            premises.append(f"{model_title(model)} {premise:.1f}%")
    measured = (
        "share of attention rows whose entropy a boost of a meta key lowers, against all of them, every "
    )
    measured += f"model (the theorem's premise holds in: {', '.join(premises) or 'not measured'})"
    return Finding(measured, Evidence(NOT_WORSE, tuple(parts)), _one_seed(parts))


def _each(
    places: dict[str, list], comparisons: Callable[[list], Iterable[Comparison]]
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """A part for each place that has comparisons to make; the others' names, as gaps."""
    built = {place: _points(place, list(comparisons(found))) for place, found in places.items()}
    parts = tuple(part for part in built.values() if part is not None)
    return parts, tuple(
        f"{place}: tests nothing or has 1 seed" for place, part in built.items() if part is None
    )


def _points(name: str, comparisons: Sequence[Comparison]) -> Part | None:
    sample = mean_difference(comparisons)
    if sample is None:
        return None
    return Part(name, sample, sum(c.n for c in comparisons), _in_points(sample))


def _mean_step(steps: Sequence[tuple[Comparison, Comparison]]) -> Sample | None:
    """The second difference minus the first, mean over cells, over the seeds that have all of them."""
    seeds = set.intersection(*(set(c.by_seed) for pair in steps for c in pair)) if steps else set()
    if not seeds:
        return None
    values, errors = [], []
    for seed in sorted(seeds):
        found = [(first.by_seed[seed], last.by_seed[seed]) for first, last in steps]
        values.append(np.mean([last[0] - first[0] for first, last in found]))
        errors.append(np.mean([math.hypot(first[1], last[1]) for first, last in found]))
    return over_seeds(values, errors)


def _some(part: Part | None) -> tuple[Part, ...]:
    return () if part is None else (part,)


def _few(places: dict[str, list]) -> str:
    return "every part tests nothing or has 1 seed" if places else "no cell of it is in the ledger"


def _one_seed(parts: Iterable[Part] | Iterator[Part]) -> str:
    return "1 seed" if list(parts) else "no cell of it is in the ledger"


def _is_meta(model: str) -> bool:
    """Whether the paper's claims are about it: the controls with meta tokens have no meta-attention."""
    return model.startswith("meta_")


def _task(task: str) -> str:
    return TASK_NAMES.get(task, task)


def _in_points(sample: Sample) -> str:
    value, low, high = sample.estimate
    return f"{signed(value)} points [{signed(low)}, {signed(high)}]"


def _plain(sample: Sample, unit: str) -> str:
    return "{:.3g}{unit} [{:.3g}, {:.3g}]".format(*sample.estimate, unit=unit)
