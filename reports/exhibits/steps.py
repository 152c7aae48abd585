"""Steps to 90%, beyond the paper: how fast a model learns a task, for which a final score says nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from metatok.experiment import RunRecord
from reports.exhibits.exhibit import DASH, TASK_NAMES, Entry, Exhibit, left_out_notes, model_title
from reports.exhibits.grid import TASKS, fine_tunes
from reports.source.results import Key, Results, missing_lines
from reports.source.runs import is_extended

REACHED, VALIDATED = "steps_to_90", "n_validation"
_COLUMNS = (
    "task", "model", "train_length", "state", "median_steps", "seeds", "reached", "steps", "n_validation",
)  # fmt: skip


def steps_to_90(results: Results) -> Exhibit:
    """Median over seeds of the optimiser steps to 90% exact match on validation, a column a train length."""
    places = [(task, m, n) for task in TASKS for m, n in fine_tunes(results, task)]
    lengths = sorted({n for _, _, n in places})
    data = [_row(results, *place) for place in places]
    entries = {(r["task"], r["model"], r["train_length"]): _entry(r) for r in data}
    models = dict.fromkeys((task, model) for task, model, _ in places)
    rows = [
        [TASK_NAMES[task], model_title(model), *(entries.get((task, model, n), "") for n in lengths)]
        for task, model in models
    ]
    measured = any(row["state"] == "measured" for row in data)
    return Exhibit(
        "steps_to_90",
        "Optimiser steps until 90% of validation is right",
        "Median over seeds of the steps of one train length until a fine-tune first has 90% exact match on "
        "its validation set; each train length starts from the previous one's weights where fine-tunes are "
        "chained. A seed that never has counts as censored: where half of them or more are, the median is "
        "only known to be above the steps trained. n = validation examples a seed.",
        pd.DataFrame(rows, columns=["task", "model", *map(str, lengths)]),
        labels=2,
        data=pd.DataFrame(data, columns=list(_COLUMNS)),
        spanner="train length (tokens)",
        notes=left_out_notes(results, "finetune"),
        missing=missing_lines([c for c in results.missing("finetune") if not is_extended(c["model"])])
        if measured
        else ["not recorded: no fine-tune here was scored on validation while it trained"],
        runs=list(results.runs("finetune").fingerprint) if measured else [],
    )


def _row(results: Results, task: str, model: str, train_length: int) -> dict[str, object]:
    runs = results.runs("finetune", task=task, model=model, train_length=str(train_length))
    followed = [record for record in runs.record if VALIDATED in record.metrics]
    row: dict[str, object] = {"task": task, "model": model, "train_length": train_length}
    if not followed:
        trouble = results.trouble_at(Key(model, task, train_length, 0))
        return row | {"state": trouble or ("not recorded" if len(runs) else "missing")}
    return row | {
        "state": "measured",
        "median_steps": censored_median([r.metrics.get(REACHED, math.inf) for r in followed]),
        "seeds": len(followed),
        "reached": sum(REACHED in r.metrics for r in followed),
        "steps": _longest(followed),
        "n_validation": round(max(r.metrics[VALIDATED] for r in followed)),
    }


def censored_median(steps: Sequence[float]) -> float:
    """The median where infinity stands for "not reached"; infinity if half or more are that."""
    return float(np.median(steps))


def _longest(records: Sequence[RunRecord]) -> int:
    return max(int(record.params["steps"]) for record in records)


def _entry(row: dict[str, object]) -> Entry:
    state, median = row["state"], row.get("median_steps")
    if not isinstance(median, float):
        return Entry(DASH if state == "missing" else str(state), state="missing")
    value = f"{median:,.0f}" if math.isfinite(median) else f"> {row['steps']:,}"
    return Entry(value, (f"{row['reached']} of {row['seeds']} seeds", f"n={row['n_validation']}"))
