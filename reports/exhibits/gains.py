"""Tables 2 and 17: zeroing the position at meta tokens against the full model, paired."""

from __future__ import annotations

import pandas as pd

from reports.exhibits.exhibit import (
    DASH,
    MAJORITY,
    Exhibit,
    absent_entry,
    gain_entry,
    majority_text,
    model_title,
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
from reports.source.results import Key, Results

_HEADS = [
    "model",
    "train length",
    "eval length",
    "full",
    "no pos",
    "gain (points)",
    "won / lost",
    "p",
    MAJORITY,
]
_NO_POS_COLUMNS = (
    *Key._fields, "full", "no_pos", "gain", "low", "high", "p", "won", "lost", "n", "seeds", "majority_share",
    "paper_full", "paper_no_pos", "paper_gain",
)  # fmt: skip


def no_pos(results: Results, number: int) -> Exhibit:
    """Table 17: no pos against full, every configuration. Table 2: those with a gain, and the paper's own."""
    task = "list_recall"
    models = ablated_models(results, task)
    keys = [
        Key(model, task, train, length, "no_pos")
        for model, train in fine_tunes(results, task)
        if model in models
        for length in eval_lengths(results, task, extended=False)
        if not results.over_context(model, length)
    ]
    built = [(_no_pos_row(results, key), key) for key in keys]
    kept = [
        (row, data) for (row, data), key in built if number == 17 or _gains(data) or _in_paper(results, key)
    ]
    gains = sum(_gains(data) for (_, data), _ in built)
    compared = sum(data["n"] is not None for (_, data), _ in built)
    exhibit = Exhibit(
        f"table_{number:02d}",
        "No position at the meta tokens against the full model on list recall"
        + ("" if number == 17 else ": where it gains"),
        "Exact-match accuracy in percent and the gain of zeroing the position at meta tokens, in points. "
        f"{WILSON}; the gain's interval is Newcombe's for paired proportions (method 10), p the exact "
        "McNemar test, on the same test examples; won / lost: examples that only one of the two gets right.",
        pd.DataFrame([row for row, _ in kept], columns=_HEADS),
        labels=3,
        data=pd.DataFrame([data for _, data in kept], columns=list(_NO_POS_COLUMNS)),
        notes=[BINS],
        missing=ablation_missing(results, task, models, ("no_pos",)),
        runs=ablation_runs(results, task, models, ("no_pos",)),
        paper=results.reference.block("table_2", "setting"),
    )
    if number == 2 and compared:
        exhibit.notes.append(
            f"Selected for a gain, as in the paper: {gains} of {compared} comparisons; Table 17 has them all."
        )
    exhibit.notes.append(
        "Tests pool seeds that share their test examples and are not corrected for their number."
    )
    return exhibit


def _no_pos_row(results: Results, key: Key) -> tuple[list[object], dict[str, object]]:
    full_key = key._replace(setting="full")
    share = results.majority(key.task, key.eval_length)
    papers = [
        results.reference.at(*key._replace(setting=setting), metric, prefer="table_2")
        for setting, metric in (
            ("full", "accuracy"),
            ("no_pos", "accuracy"),
            ("no_pos_minus_full", "accuracy_delta"),
        )
    ]
    points = [results.exact.get(full_key), results.exact.get(key)]
    entries: list[object] = [
        point_entry(point, paper) if point else absent_entry(results, key, paper)
        for point, paper in zip(points, papers, strict=False)
    ]
    data: dict[str, object] = dict.fromkeys(_NO_POS_COLUMNS) | key._asdict() | {"majority_share": share}
    data |= {
        name: p.value
        for name, p in zip(("paper_full", "paper_no_pos", "paper_gain"), papers, strict=True)
        if p
    }
    gain = results.gain(key)
    if gain is None:
        entries += [absent_entry(results, key, papers[2]), DASH, DASH]
    else:
        t = gain.test
        entries += [gain_entry(gain, papers[2]), f"{t.gained} / {t.lost}", f"{t.p:.3g}"]
        data |= {"gain": t.gain, "low": t.low, "high": t.high, "p": t.p, "won": t.gained, "lost": t.lost}
        data |= {"n": t.n, "seeds": gain.seeds}
    data |= {name: p.pooled.value for name, p in zip(("full", "no_pos"), points, strict=True) if p}
    labels = [model_title(key.model), str(key.train_length), str(key.eval_length)]
    return [*labels, *entries, majority_text(share)], data


def _gains(data: dict[str, object]) -> bool:
    return isinstance(data["gain"], float) and data["gain"] > 0


def _in_paper(results: Results, key: Key) -> bool:
    return results.reference.at(*key, "accuracy") is not None
