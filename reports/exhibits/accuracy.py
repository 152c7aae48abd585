"""Tables 1 and 7-16: accuracies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from reports.exhibits.exhibit import (
    MAJORITY,
    TASK_NAMES,
    TESTS_NOTHING,
    TESTS_NOTHING_NOTE,
    Exhibit,
    base_rate_entry,
    left_out_notes,
    missing_notes,
    model_title,
    point_frame,
    setting_title,
)
from reports.exhibits.grid import (
    BINS,
    TASKS,
    WILSON,
    ablated_models,
    ablation_missing,
    ablation_runs,
    base_rate_rows,
    entries_of,
    eval_lengths,
    fine_tunes,
    grid_missing,
    lengths_text,
    models_of,
    noise_settings,
    unequal_settings,
)
from reports.source.results import Key, Results, missing_lines
from reports.source.runs import is_extended

ABLATIONS = ("full", "no_pos", "no_embed", "neither")


def accuracy_by_length(results: Results, number: int, task: str) -> Exhibit:
    """Tables 7-10: accuracy by model, train length and eval length."""
    rows = [(m, t, "full") for m, t in fine_tunes(results, task)]
    exhibit = _length_grid(results, f"table_{number:02d}", task, rows, show_setting=False)
    exhibit.title = f"Accuracy on {TASK_NAMES[task]} across evaluation lengths"
    exhibit.caption = (
        f"Exact-match accuracy in percent on {TASK_NAMES[task]}. {WILSON}. {lengths_text(exhibit.data)}"
    )
    exhibit.missing = grid_missing(results, task)
    runs = results.runs("finetune", task=task)
    exhibit.runs = list(runs.fingerprint[~runs.extended])
    exhibit.paper = results.reference.block("figure_1", "train_length", task)
    return exhibit


def ablations(results: Results, number: int, task: str) -> Exhibit:
    """Tables 11-14: what zeroing at the meta tokens does."""
    models = ablated_models(results, task)
    rows = [(m, t, s) for m, t in fine_tunes(results, task) if m in models for s in ABLATIONS]
    exhibit = _length_grid(results, f"table_{number:02d}", task, rows, show_setting=True)
    exhibit.title = f"Ablations at the meta tokens on {TASK_NAMES[task]}"
    exhibit.caption = (
        f"Exact-match accuracy in percent on {TASK_NAMES[task]} with, at inference and at meta tokens only, "
        f"the position zeroed (no pos), the token embedding zeroed (no embed), or both (neither). {WILSON}. "
        f"{lengths_text(exhibit.data)}"
    )
    exhibit.missing = ablation_missing(results, task, models, ABLATIONS[1:])
    exhibit.notes += left_out_notes(results, "ablate", task)
    exhibit.runs = ablation_runs(results, task, models, ABLATIONS[1:])
    if task == "list_recall":
        exhibit.paper = results.reference.block("table_2", "setting")
    return exhibit


def position_noise(results: Results, number: int, task: str) -> Exhibit:
    """Tables 15 and 16: Gaussian noise on the position of the meta tokens, a scale a column."""
    models = ablated_models(results, task)
    scales = noise_settings(results, task)
    settings = ["full", *scales]
    frame_rows, data = [], []
    for model, train in fine_tunes(results, task):
        for length in eval_lengths(results, task, extended=False) if model in models else []:
            keys = [Key(model, task, train, length, s) for s in settings]
            entries, rows = entries_of(results, keys)
            data += rows
            nothing = results.tests_nothing(keys)
            base = base_rate_entry(results.base_rate(task, length))
            frame_rows.append([model_title(model), str(train), str(length), *entries, base, nothing])
    names = ["0 (full)", *(s.removeprefix("noise_") for s in scales)]
    columns = ["model", "train length", "eval length", *names, MAJORITY, TESTS_NOTHING]
    exhibit = Exhibit(
        f"table_{number}",
        f"Gaussian noise on the position of the meta tokens, {TASK_NAMES[task]}",
        f"Exact-match accuracy in percent on {TASK_NAMES[task]}; columns: standard deviation of the "
        "noise (APE: on the table's row; RoPE: on the rotation angles, in radians), at inference and at meta "
        f"tokens only. {WILSON}.",
        pd.DataFrame(frame_rows, columns=columns),
        labels=3,
        data=point_frame(data),
        spanner="standard deviation of the noise",
        notes=[BINS, TESTS_NOTHING_NOTE],
        missing=ablation_missing(results, task, models, scales),
        runs=ablation_runs(results, task, models, scales),
    )
    exhibit.notes += left_out_notes(results, "ablate", task)
    return exhibit


def long_contexts(results: Results) -> Exhibit:
    """Table 1: token accuracy of the extended models."""
    tasks = [t for t in TASKS if any(is_extended(m) for m in models_of(results, t))]
    lengths = sorted({n for t in tasks for n in eval_lengths(results, t, extended=True)})
    frame_rows: list[list[object]] = []
    data: list[dict[str, object]] = []
    for task in tasks:
        for model, train in fine_tunes(results, task, extended=True):
            keys = [Key(model, task, train, length) for length in lengths]
            entries, rows = entries_of(results, keys, "token_accuracy", "table_1")
            data += rows
            frame_rows.append([TASK_NAMES[task], model_title(model), str(train), *entries])
        tuned = list(fine_tunes(results, task, extended=True))
        rates, nothing = base_rate_rows(results, task, tuned, lengths)
        frame_rows.append([TASK_NAMES[task], f"{MAJORITY}, exact match", "", *rates])
        frame_rows.append([TASK_NAMES[task], f"{TESTS_NOTHING}, exact match", "", *nothing])
    exhibit = Exhibit(
        "table_01",
        "Token accuracy of the extended models across long contexts",
        "Share of answer tokens predicted right under teacher forcing, in percent, after fine-tuning the "
        "YaRN-extended models. 95% Wilson interval at the effective sample size, as answer tokens of one "
        f"example are not independent; n = test examples, seeds pooled. {lengths_text(data)}",
        pd.DataFrame(frame_rows, columns=["task", "model", "train length", *map(str, lengths)]),
        labels=3,
        data=point_frame(data),
        spanner="evaluation length (tokens)",
        notes=[
            BINS,
            TESTS_NOTHING_NOTE,
            f"“{MAJORITY}” gets no token credit: it is the exact-match accuracy of always giving it.",
        ],
        paper=results.reference.block("table_1", "eval_length"),
    )
    for task in tasks:
        exhibit.missing += missing_lines(
            [c for c in results.missing("finetune", task=task) if is_extended(c["model"])]
        )
        exhibit.notes += left_out_notes(results, "finetune", task)
    exhibit.missing += missing_notes(results, ("extend", {}))
    shown = results.runs("finetune")
    exhibit.runs = [*results.runs("extend").fingerprint, *shown[shown.extended].fingerprint]
    return exhibit


def _length_grid(
    results: Results, name: str, task: str, rows: Sequence[tuple[str, int, str]], show_setting: bool
) -> Exhibit:
    """Rows by columns of eval lengths, with the commonest answer's accuracy as last row."""
    lengths = eval_lengths(results, task, extended=False)
    labels = ["model", "train length", *(["setting"] if show_setting else [])]
    frame_rows: list[list[object]] = []
    data: list[dict[str, object]] = []
    for model, train, setting in rows:
        entries, tidy = entries_of(results, [Key(model, task, train, n, setting) for n in lengths])
        data += tidy
        shown = [model_title(model), str(train), *([setting_title(setting)] if show_setting else [])]
        frame_rows.append([*shown, *entries])
    rates, nothing = base_rate_rows(results, task, list(dict.fromkeys((m, t) for m, t, _ in rows)), lengths)
    blank = [""] * (len(labels) - 1)
    frame_rows += [[MAJORITY, *blank, *rates], [TESTS_NOTHING, *blank, *nothing]]
    return Exhibit(
        name,
        "",
        "",
        pd.DataFrame(frame_rows, columns=[*labels, *map(str, lengths)]),
        labels=len(labels),
        data=point_frame(data),
        spanner="evaluation length (tokens)",
        notes=[
            BINS,
            TESTS_NOTHING_NOTE,
            *left_out_notes(results, "finetune", task),
            *unequal_settings(results, task),
        ],
    )


def accuracy_tables(results: Results) -> list[Exhibit]:
    """Tables 1 and 7-16."""
    by_task: list[tuple[Callable[[Results, int, str], Exhibit], int, Sequence[str]]] = [
        (accuracy_by_length, 7, TASKS),
        (ablations, 11, TASKS),
        (position_noise, 15, ("list_recall", "copying")),
    ]
    grids = [
        build(results, first + i, task) for build, first, tasks in by_task for i, task in enumerate(tasks)
    ]
    return [long_contexts(results), *grids]
