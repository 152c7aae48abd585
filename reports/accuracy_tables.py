"""Tables 1, 2 and 7-17: accuracies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from reports.exhibit import (
    DASH,
    MAJORITY,
    TASK_NAMES,
    Entry,
    Exhibit,
    absent_entry,
    gain_entry,
    left_out_notes,
    majority_text,
    missing_notes,
    model_order,
    model_title,
    percent,
    point_entry,
    point_frame,
    point_row,
    reported,
    setting_title,
)
from reports.results import Key, Point, Results, is_extended, missing_lines

TASKS = tuple(TASK_NAMES)
ABLATIONS = ("full", "no_pos", "no_embed", "neither")
WILSON = "95% Wilson interval in brackets; n = test examples, seeds pooled"
BINS = "Evaluation length E: prompts of more than E/2 tokens that with their answer have at most E."


def accuracy_by_length(results: Results, number: int, task: str) -> Exhibit:
    """Tables 7-10: accuracy by model, train length and eval length."""
    rows = [(m, t, "full") for m, t in _fine_tunes(results, task)]
    exhibit = _length_grid(results, f"table_{number:02d}", task, rows, show_setting=False)
    exhibit.title = f"Accuracy on {TASK_NAMES[task]} across evaluation lengths"
    exhibit.caption = f"Exact-match accuracy in percent on {TASK_NAMES[task]}. {WILSON}. {_lengths(exhibit.data)}"
    exhibit.missing = _grid_missing(results, task)
    exhibit.runs = reported(results, ["finetune"], task=task) if rows else []
    exhibit.runs = _base_only(results, exhibit.runs)
    exhibit.paper = results.reference.block("figure_1", "train_length", task)
    return exhibit


def ablations(results: Results, number: int, task: str) -> Exhibit:
    """Tables 11-14: what zeroing at the meta tokens does."""
    models = _ablated_models(results, task)
    rows = [(m, t, s) for m, t in _fine_tunes(results, task) if m in models for s in ABLATIONS]
    exhibit = _length_grid(results, f"table_{number:02d}", task, rows, show_setting=True)
    exhibit.title = f"Ablations at the meta tokens on {TASK_NAMES[task]}"
    exhibit.caption = (
        f"Exact-match accuracy in percent on {TASK_NAMES[task]} with, at inference and at meta tokens only, the "
        f"position zeroed (no pos), the token embedding zeroed (no embed), or both (neither). {WILSON}. "
        f"{_lengths(exhibit.data)}"
    )
    exhibit.missing = _ablation_missing(results, task, models, ABLATIONS[1:])
    exhibit.notes += left_out_notes(results, "ablate", task)
    exhibit.runs = _ablation_runs(results, task, models, ABLATIONS[1:])
    if task == "list_recall":
        exhibit.paper = results.reference.block("table_2", "setting")
    return exhibit


def position_noise(results: Results, number: int, task: str) -> Exhibit:
    """Tables 15 and 16: Gaussian noise on the position of the meta tokens, a scale a column."""
    models = _ablated_models(results, task)
    scales = _noise_settings(results, task)
    settings = ["full", *scales]
    frame_rows, data = [], []
    for model, train in _fine_tunes(results, task):
        for length in _eval_lengths(results, task, extended=False) if model in models else []:
            keys = [Key(model, task, train, length, s) for s in settings]
            entries, rows = _entries(results, keys)
            data += rows
            share = majority_text(results.majority(task, length))
            frame_rows.append([model_title(model), str(train), str(length), *entries, share])
    names = ["0 (full)", *(s.removeprefix("noise_") for s in scales)]
    columns = ["model", "train length", "eval length", *names, MAJORITY]
    exhibit = Exhibit(
        f"table_{number}",
        f"Gaussian noise on the position of the meta tokens, {TASK_NAMES[task]}",
        f"Exact-match accuracy in percent on {TASK_NAMES[task]}; columns: standard deviation of the noise (APE: on "
        f"the table's row; RoPE: on the rotation angles, in radians), at inference and at meta tokens only. {WILSON}.",
        pd.DataFrame(frame_rows, columns=columns),
        labels=3,
        data=point_frame(data),
        spanner="standard deviation of the noise",
        notes=[BINS],
        missing=_ablation_missing(results, task, models, scales),
        runs=_ablation_runs(results, task, models, scales),
    )
    exhibit.notes += left_out_notes(results, "ablate", task)
    return exhibit


def no_pos(results: Results, number: int) -> Exhibit:
    """Table 17: no pos against full, every configuration. Table 2: those with a gain, and the paper's own."""
    task = "list_recall"
    models = _ablated_models(results, task)
    keys = [
        Key(model, task, train, length, "no_pos")
        for model, train in _fine_tunes(results, task)
        if model in models
        for length in _eval_lengths(results, task, extended=False)
        if not results.over_context(model, length)
    ]
    built = [(_no_pos_row(results, key), key) for key in keys]
    kept = [(row, data) for (row, data), key in built if number == 17 or _gains(data) or _in_paper(results, key)]
    gains, compared = sum(_gains(data) for (_, data), _ in built), sum(data["n"] is not None for (_, data), _ in built)
    columns = ["model", "train length", "eval length", "full", "no pos", "gain (points)", "won / lost", "p", MAJORITY]
    exhibit = Exhibit(
        f"table_{number:02d}",
        "No position at the meta tokens against the full model on list recall"
        + ("" if number == 17 else ": where it gains"),
        "Exact-match accuracy in percent and the gain of zeroing the position at meta tokens, in points. "
        f"{WILSON}; the gain's interval is Newcombe's for paired proportions (method 10), p the exact McNemar test, "
        "on the same test examples; won / lost: examples that only one of the two gets right.",
        pd.DataFrame([row for row, _ in kept], columns=columns),
        labels=3,
        data=pd.DataFrame([data for _, data in kept], columns=list(_NO_POS_COLUMNS)),
        notes=[BINS],
        missing=_ablation_missing(results, task, models, ("no_pos",)),
        runs=_ablation_runs(results, task, models, ("no_pos",)),
        paper=results.reference.block("table_2", "setting"),
    )
    if number == 2 and compared:
        exhibit.notes.append(
            f"Selected for a gain, as in the paper: {gains} of {compared} comparisons; Table 17 has all of them."
        )
    exhibit.notes.append(
        "Tests pool seeds that share their test examples and are not corrected for their number."
    )
    return exhibit


_NO_POS_COLUMNS = (
    *Key._fields, "full", "no_pos", "gain", "low", "high", "p", "won", "lost", "n", "seeds", "majority_share",
    "paper_full", "paper_no_pos", "paper_gain",
)  # fmt: skip


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


def long_contexts(results: Results) -> Exhibit:
    """Table 1: token accuracy of the extended models."""
    tasks = [t for t in TASKS if any(is_extended(m) for m in _models(results, t))]
    lengths = sorted({n for t in tasks for n in _eval_lengths(results, t, extended=True)})
    frame_rows: list[list[object]] = []
    data: list[dict[str, object]] = []
    for task in tasks:
        for model, train in _fine_tunes(results, task, extended=True):
            keys = [Key(model, task, train, length) for length in lengths]
            entries, rows = _entries(results, keys, "token_accuracy", "table_1")
            data += rows
            frame_rows.append([TASK_NAMES[task], model_title(model), str(train), *entries])
        shares = [majority_text(results.majority(task, n)) for n in lengths]
        frame_rows.append([TASK_NAMES[task], f"{MAJORITY}, exact match", "", *shares])
    exhibit = Exhibit(
        "table_01",
        "Token accuracy of the extended models across long contexts",
        "Share of answer tokens predicted right under teacher forcing, in percent, after fine-tuning the "
        "YaRN-extended models. 95% Wilson interval at the effective sample size, as answer tokens of one example "
        f"are not independent; n = test examples, seeds pooled. {_lengths(data)}",
        pd.DataFrame(frame_rows, columns=["task", "model", "train length", *map(str, lengths)]),
        labels=3,
        data=point_frame(data),
        spanner="evaluation length (tokens)",
        notes=[BINS, f"“{MAJORITY}” gets no token credit: it is the exact-match accuracy of always giving it."],
        paper=results.reference.block("table_1", "eval_length"),
    )
    for task in tasks:
        exhibit.missing += missing_lines([c for c in results.missing("finetune", task=task) if is_extended(c["model"])])
        exhibit.notes += left_out_notes(results, "finetune", task)
    exhibit.missing += missing_notes(results, ("extend", {}))
    shown = results.runs("finetune")
    exhibit.runs = [*results.runs("extend").fingerprint, *shown[shown.model.map(is_extended)].fingerprint]
    return exhibit


def _length_grid(
    results: Results, name: str, task: str, rows: Sequence[tuple[str, int, str]], show_setting: bool
) -> Exhibit:
    """Rows by columns of eval lengths, with the commonest answer's accuracy as last row."""
    lengths = _eval_lengths(results, task, extended=False)
    labels = ["model", "train length", *(["setting"] if show_setting else [])]
    frame_rows: list[list[object]] = []
    data: list[dict[str, object]] = []
    for model, train, setting in rows:
        entries, tidy = _entries(results, [Key(model, task, train, n, setting) for n in lengths])
        data += tidy
        shown = [model_title(model), str(train), *([setting_title(setting)] if show_setting else [])]
        frame_rows.append([*shown, *entries])
    shares = [majority_text(results.majority(task, n)) for n in lengths]
    frame_rows.append([MAJORITY, *[""] * (len(labels) - 1), *shares])
    return Exhibit(
        name,
        "",
        "",
        pd.DataFrame(frame_rows, columns=[*labels, *map(str, lengths)]),
        labels=len(labels),
        data=point_frame(data),
        spanner="evaluation length (tokens)",
        notes=[BINS, *left_out_notes(results, "finetune", task), *_unequal(results, task)],
    )


def _entries(
    results: Results, keys: Sequence[Key], metric: str = "accuracy", prefer: str = "figure_1"
) -> tuple[list[Entry], list[dict[str, object]]]:
    """The cells of these coordinates and their tidy rows."""
    points = results.token if metric == "token_accuracy" else results.exact
    entries, rows = [], []
    for key in keys:
        point: Point | None = points.get(key)
        paper = results.reference.at(*key, metric, prefer=prefer)
        entry = point_entry(point, paper) if point else absent_entry(results, key, paper)
        entries.append(entry)
        rows.append(point_row(key, point, entry, results.majority(key.task, key.eval_length)))
    return entries, rows


def _models(results: Results, task: str) -> list[str]:
    both = [results.runs("finetune", task=task), results.expected("finetune", task=task)]
    return model_order(m for frame in both for m in frame.model)


def _fine_tunes(results: Results, task: str, extended: bool = False) -> Iterator[tuple[str, int]]:
    """(model, train length) of every fine-tune that is there or expected, and of the grid they span."""
    pairs = {
        (r.model, int(r.train_length))
        for frame in (results.runs("finetune", task=task), results.expected("finetune", task=task))
        for r in frame[["model", "train_length"]].itertuples()
        if is_extended(r.model) == extended
    }
    lengths = sorted({t for _, t in pairs})
    for model in model_order(m for m, _ in pairs):
        context = results.contexts.get(model, ("", 0))[1]
        for train in lengths:
            # An extension is fine-tuned up to its own context, so the grid has no cell beyond it.
            if (model, train) in pairs or (not extended and train <= context):
                yield model, train


def _eval_lengths(results: Results, task: str, extended: bool) -> list[int]:
    scored = results.scores[results.scores.task == task]
    found = {n for m, n in zip(scored.model, scored.eval_length, strict=True) if is_extended(m) == extended}
    cells = results.expected("finetune", task=task)
    found |= {
        n
        for model, cell in zip(cells.model, cells.cell, strict=True)
        if is_extended(model) == extended
        for n in cell.eval_lengths
    }
    return sorted(found)


def _ablated_models(results: Results, task: str) -> list[str]:
    both = [results.runs("ablate", task=task), results.expected("ablate", task=task)]
    return model_order(m for frame in both for m in frame.model if not is_extended(m))


def _noise_settings(results: Results, task: str) -> list[str]:
    both = [results.runs("ablate", task=task), results.expected("ablate", task=task)]
    found = {s for frame in both for s in frame.setting if s.startswith("noise_")}
    return sorted(found, key=lambda s: float(s.removeprefix("noise_")))


def _grid_missing(results: Results, task: str) -> list[str]:
    """The preset's missing fine-tunes, then holes of the grid that finished ones span."""
    cells = [c for c in results.missing("finetune", task=task) if not is_extended(c["model"])]
    known = {(c["model"], int(c["train_length"])) for c in cells}
    known |= {(k.model, k.train_length) for k in results.exact if k.task == task}
    holes = [
        {"kind": "finetune", "model": m, "task": task, "train_length": str(t)}
        for m, t in _fine_tunes(results, task)
        if (m, t) not in known
    ]
    lines = missing_lines([*cells, *holes])
    return lines + _unscored(results, task)


def _unscored(results: Results, task: str) -> list[str]:
    """Finished fine-tunes without a score at a length that other models have."""
    trained = {(k.model, k.train_length) for k in results.exact if k.task == task and not is_extended(k.model)}
    gaps = [
        {"kind": "score", "model": m, "task": task, "train_length": str(t), "eval_length": str(n)}
        for m, t in sorted(trained)
        for n in _eval_lengths(results, task, extended=False)
        if Key(m, task, t, n) not in results.exact and not results.over_context(m, n)
    ]
    return missing_lines(gaps)


def _ablation_missing(results: Results, task: str, models: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The preset's missing ablations and the fine-tunes that they are of, then holes of the grid."""
    tuned = [c for c in results.missing("finetune", task=task) if c["model"] in models]
    cells = [c for c in results.missing("ablate", task=task) if c["setting"] in settings]
    known = {(c["model"], int(c["train_length"]), c["setting"]) for c in cells}
    known |= {(k.model, k.train_length, k.setting) for k in results.exact if k.task == task}
    holes = [
        {"kind": "ablate", "model": m, "task": task, "train_length": str(t), "setting": s}
        for m, t in _fine_tunes(results, task)
        if m in models
        for s in settings
        if (m, t, s) not in known
    ]
    return missing_lines([*tuned, *cells, *holes])


def _ablation_runs(results: Results, task: str, models: Sequence[str], settings: Sequence[str]) -> list[str]:
    tuned, ablated = results.runs("finetune", task=task), results.runs("ablate", task=task)
    return [
        *tuned[tuned.model.isin(models)].fingerprint,
        *ablated[ablated.setting.isin(settings)].fingerprint,
    ]


def _base_only(results: Results, fingerprints: Sequence[str]) -> list[str]:
    extended = set(results.shown.fingerprint[results.shown.model.map(is_extended)])
    return [f for f in fingerprints if f not in extended]


def _unequal(results: Results, task: str) -> list[str]:
    """Settings that the fine-tunes of one table do not share, as rows may then not be compared."""
    runs = results.runs("finetune", task=task)
    records = runs.record[~runs.model.map(is_extended)]
    skip = {"model", "task", "train_length", "eval_lengths", "seed"}
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.params.items():
            if name not in skip:
                values.setdefault(name, set()).add(value)
    return [
        f"Rows differ in {name} ({', '.join(sorted(found))}), so they are not trained alike."
        for name, found in values.items()
        if len(found) > 1
    ]


def _lengths(data: pd.DataFrame | list[dict[str, object]]) -> str:
    frame = pd.DataFrame(data)
    if frame.empty:
        return "No train or evaluation length is known."
    train, evaluated = (sorted(set(frame[c])) for c in ("train_length", "eval_length"))
    return f"Train lengths {', '.join(map(str, train))}; evaluation lengths {', '.join(map(str, evaluated))}."


def accuracy_tables(results: Results) -> list[Exhibit]:
    """Tables 1, 2 and 7-17."""
    by_task: list[tuple[Callable[[Results, int, str], Exhibit], int, Sequence[str]]] = [
        (accuracy_by_length, 7, TASKS),
        (ablations, 11, TASKS),
        (position_noise, 15, ("list_recall", "copying")),
    ]
    grids = [build(results, first + i, task) for build, first, tasks in by_task for i, task in enumerate(tasks)]
    return [long_contexts(results), no_pos(results, 2), *grids, no_pos(results, 17)]
