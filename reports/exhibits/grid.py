"""The grid of an accuracy table: which rows and columns, what stands in them, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from reports.exhibits.exhibit import (
    TASK_NAMES,
    Entry,
    absent_entry,
    base_rate_entry,
    model_order,
    point_entry,
    point_row,
)
from reports.source.results import Key, Point, Results, missing_lines
from reports.source.runs import is_extended

TASKS = tuple(TASK_NAMES)
WILSON = "95% Wilson interval in brackets; n = test examples, seeds pooled"
BINS = "Evaluation length E: prompts of more than E/2 tokens that with their answer have at most E."


def entries_of(
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
        rows.append(
            point_row(key, point, entry, results.majority(key.task, key.eval_length, is_extended(key.model)))
        )
    return entries, rows


def models_of(results: Results, task: str) -> list[str]:
    return model_order(m for frame in results.known("finetune", task=task) for m in frame.model)


def base_rate_rows(
    results: Results, task: str, tuned: Sequence[tuple[str, int]], lengths: Sequence[int]
) -> tuple[list[Entry], list[str]]:
    """The last two rows of a table of these (model, train length): the best constant answer, and where the
    full models' scores test nothing."""
    extended = any(is_extended(model) for model, _ in tuned)
    rates = [base_rate_entry(results.base_rate(task, n, extended)) for n in lengths]
    columns = [[Key(model, task, train, n) for model, train in tuned] for n in lengths]
    return rates, [results.tests_nothing(keys) for keys in columns]


def fine_tunes(results: Results, task: str, extended: bool = False) -> Iterator[tuple[str, int]]:
    """(model, train length) of every fine-tune that is there or expected, and of the grid they span."""
    pairs = {
        (r.model, int(r.train_length))
        for frame in results.known("finetune", task=task)
        for r in frame[frame.extended == extended].itertuples()
    }
    lengths = sorted({t for _, t in pairs})
    for model in model_order(m for m, _ in pairs):
        context = results.contexts.get(model, ("", 0))[1]
        for train in lengths:
            # An extension is fine-tuned up to its own context, so the grid has no cell beyond it.
            if (model, train) in pairs or (not extended and train <= context):
                yield model, train


def eval_lengths(results: Results, task: str, extended: bool) -> list[int]:
    scored = results.scores[results.scores.task == task]
    cells = results.expected("finetune", task=task)
    planned = {n for cell in cells.cell[cells.extended == extended] for n in cell.eval_lengths}
    return sorted({*scored.eval_length[scored.extended == extended], *planned})


def ablated_models(results: Results, task: str) -> list[str]:
    frames = results.known("ablate", task=task)
    return model_order(m for frame in frames for m in frame.model[~frame.extended])


def noise_settings(results: Results, task: str) -> list[str]:
    frames = results.known("ablate", task=task)
    found = {s for frame in frames for s in frame.setting if s.startswith("noise_")}
    return sorted(found, key=lambda s: float(s.removeprefix("noise_")))


def grid_missing(results: Results, task: str) -> list[str]:
    """The preset's missing fine-tunes, then holes of the grid that finished ones span."""
    cells = [c for c in results.missing("finetune", task=task) if not is_extended(c["model"])]
    known = {(c["model"], int(c["train_length"])) for c in cells}
    known |= {(k.model, k.train_length) for k in results.exact if k.task == task}
    holes = [
        {"kind": "finetune", "model": m, "task": task, "train_length": str(t)}
        for m, t in fine_tunes(results, task)
        if (m, t) not in known
    ]
    lines = missing_lines([*cells, *holes])
    return lines + _unscored(results, task)


def _unscored(results: Results, task: str) -> list[str]:
    """Finished fine-tunes without a score at a length that other models have."""
    trained = {
        (k.model, k.train_length) for k in results.exact if k.task == task and not is_extended(k.model)
    }
    gaps = [
        {"kind": "score", "model": m, "task": task, "train_length": str(t), "eval_length": str(n)}
        for m, t in sorted(trained)
        for n in eval_lengths(results, task, extended=False)
        if Key(m, task, t, n) not in results.exact and not results.over_context(m, n)
    ]
    return missing_lines(gaps)


def ablation_missing(
    results: Results, task: str, models: Sequence[str], settings: Sequence[str]
) -> list[str]:
    """The preset's missing ablations and the fine-tunes that they are of, then holes of the grid."""
    tuned = [c for c in results.missing("finetune", task=task) if c["model"] in models]
    cells = [c for c in results.missing("ablate", task=task) if c["setting"] in settings]
    known = {(c["model"], int(c["train_length"]), c["setting"]) for c in cells}
    known |= {(k.model, k.train_length, k.setting) for k in results.exact if k.task == task}
    holes = [
        {"kind": "ablate", "model": m, "task": task, "train_length": str(t), "setting": s}
        for m, t in fine_tunes(results, task)
        if m in models
        for s in settings
        if (m, t, s) not in known and results.has_setting(m, s)
    ]
    return missing_lines([*tuned, *cells, *holes])


def ablation_runs(results: Results, task: str, models: Sequence[str], settings: Sequence[str]) -> list[str]:
    tuned, ablated = results.runs("finetune", task=task), results.runs("ablate", task=task)
    return [
        *tuned[tuned.model.isin(models)].fingerprint,
        *ablated[ablated.setting.isin(settings)].fingerprint,
    ]


def unequal_settings(results: Results, task: str) -> list[str]:
    """Settings in which fine-tunes of one train length differ, as they may then not be compared."""
    runs = results.runs("finetune", task=task)
    skip = {"model", "task", "train_length", "eval_lengths", "seed"}
    notes = []
    for train, same_length in runs[~runs.extended].groupby("train_length"):
        values: dict[str, set[str]] = {}
        for record in same_length.record:
            for name in record.params.keys() - skip:
                values.setdefault(name, set()).add(record.params[name])
        notes += [
            f"At train length {train} rows differ in {name} ({', '.join(sorted(found))}): not trained alike."
            for name, found in sorted(values.items())
            if len(found) > 1
        ]
    return notes


def lengths_text(data: pd.DataFrame | list[dict[str, object]]) -> str:
    frame = pd.DataFrame(data)
    if frame.empty:
        return "No train or evaluation length is known."
    train, evaluated = (sorted(set(frame[c])) for c in ("train_length", "eval_length"))
    return f"Train lengths {', '.join(map(str, train))}; evaluation lengths {', '.join(map(str, evaluated))}."
