"""The ledger as frames: which runs a report is about, and which cells it expected."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# The progress bars of artifact downloads would bury the report's own lines.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.exceptions import MlflowException
from pydantic import ValidationError

from metatok.errors import ConfigError
from metatok.experiment import PRESETS, Cell, Ledger, Preset, RunRecord, get_preset
from metatok.experiment.design import cell_from_json, kind_names, stages, with_ancestors

LABELS = ("model", "task", "train_length", "setting", "site", "beta", "analysis", "size", "seed")
DEFAULT_PRESET = "smoke"
# What a run came to. Diverged: a loss, gradient norm or other metric of its own, or of a run that it builds
# on, is not finite; whatever else it says is no result.
State = Literal["done", "diverged", "failed", "open"]
# Not part of a configuration: seeds are pooled, and a curve has many betas and two sites.
_WITHIN_A_CONFIGURATION = {"seed", "site", "beta"}


@dataclass(frozen=True)
class Selection:
    """A report's runs and what was expected of them.

    runs: the preset's ended runs and their ancestors: kind, fingerprint, parent, state, config (a hash of all
    settings but the seed, over the whole lineage), expected (one of the preset's own cells), start and end
    (ms), record, extended (the model's context is), and LABELS as strings, "" where a kind has none.
    expected: kind, fingerprint, cell, extended and LABELS of the preset's cells. unfinished: status -> runs
    of the preset. others: preset -> finished runs. overridden: there are runs of the preset, but none is one
    of its cells, so nothing is expected.
    """

    preset: str
    runs: pd.DataFrame
    expected: pd.DataFrame
    unfinished: dict[str, int]
    others: dict[str, int]
    overridden: bool = False


def select(ledger: Ledger, preset: str | None = None, expected: Preset | None = None) -> Selection:
    """The ended runs of a preset: tagged with its name, or one of its cells whoever ran it.

    preset: default is that of the newest finished run, else of the newest at all. expected: the preset as it
    was run, if fields of it were overridden; default is that of the last sweep of all stages, else the code's
    own of that name.
    Errors: ConfigError on a preset that neither the code nor the ledger knows.
    """
    everything = read_runs(ledger)
    ended = everything[everything.state != "open"]
    name = preset or (expected.name if expected else _newest_preset(ended))
    expected = expected or _last_full_sweep(ledger, name)
    tagged = ended[ended.preset == name]
    wanted = expected_cells(expected or _known_preset(name, set(everything.preset)))
    own = ended[ended.fingerprint.isin(set(wanted.fingerprint))]
    # One that overrode fields has the preset's name and none of its cells: what it was to run isn't known.
    overridden = expected is None and own.empty and not tagged.empty and not wanted.empty
    if overridden:
        wanted = wanted.iloc[:0]
    runs = _with_ancestors(pd.concat([tagged, own]), ended)
    runs = runs.assign(expected=runs.fingerprint.isin(set(wanted.fingerprint)))
    runs = runs.assign(config=_configs(ledger, runs))
    open_runs = everything[(everything.state == "open") & (everything.preset == name)]
    rest = ended[(ended.state == "done") & ~ended.fingerprint.isin(set(runs.fingerprint))]
    return Selection(name, runs, wanted, _counts(open_runs.status), _counts(rest.preset), overridden)


def _last_full_sweep(ledger: Ledger, name: str) -> Preset | None:
    """The preset as the last sweep of all its stages resolved it; None if there was none that still reads."""
    for text in reversed(ledger.sweeps()):
        try:
            preset = Preset.model_validate_json(text)
        except ValidationError:
            continue  # recorded by another version of the code
        if preset.name == name and preset.stages == stages():
            return preset
    return None


def _known_preset(name: str, tags: set[str]) -> Preset | None:
    """The code's preset of that name; None if only the ledger's tags know it."""
    if name in PRESETS:
        return get_preset(name)
    if name in tags:
        return None
    known = ", ".join(sorted({*PRESETS, *tags} - {""}))
    raise ConfigError(f"preset={name!r}: neither the code nor this ledger knows it, choose one of {known}")


def read_runs(ledger: Ledger) -> pd.DataFrame:
    """Every run of the ledger that belongs to a cell, as a row; one a fingerprint, a finished one first."""
    records = [r for kind in kind_names() for r in ledger.records(kind, status=None) if r.fingerprint]
    rows = [_row(record) for record in records]
    columns = ["kind", "fingerprint", "parent", "status", "preset", "start", "end", "record", *LABELS]
    runs = pd.DataFrame(rows, columns=columns)
    unfinished_last = runs.assign(later=runs.status != "FINISHED").sort_values("later", kind="stable")
    runs = unfinished_last.drop(columns="later").drop_duplicates("fingerprint").sort_index()
    return _with_extended(runs.assign(state=_states(runs)))


def is_finite(value: float) -> bool:
    """Whether a metric is a number. MLflow hands NaN back as NaN, and infinity as the largest float."""
    return math.isfinite(value) and abs(value) < sys.float_info.max


def _states(runs: pd.DataFrame) -> list[State]:
    """What each run came to, with what it builds on."""
    finite = [all(map(is_finite, record.metrics.values())) for record in runs.record]
    diverged = {f for f, good in zip(runs.fingerprint, finite, strict=True) if not good}
    parents = dict(zip(runs.fingerprint, runs.parent, strict=True))

    def state(fingerprint: str, status: str) -> State:
        if status not in ("FINISHED", "FAILED"):
            return "open"
        base: str | None = fingerprint
        while base:
            if base in diverged:
                return "diverged"
            base = parents.get(base)
        return "done" if status == "FINISHED" else "failed"

    return [state(f, status) for f, status in zip(runs.fingerprint, runs.status, strict=True)]


def expected_cells(preset: Preset | None) -> pd.DataFrame:
    """The cells that a sweep of the preset makes, as rows; none without a preset."""
    cells = with_ancestors(preset.cells()) if preset is not None else []
    rows = [
        {"kind": c.kind, "fingerprint": c.fingerprint, "cell": c}
        | {name: str(c.labels.get(name, "")) for name in LABELS}
        for c in cells
    ]
    return _with_extended(pd.DataFrame(rows, columns=["kind", "fingerprint", "cell", *LABELS]))


def cell_of(ledger: Ledger, record: RunRecord) -> Cell | None:
    """The cell that a run did, or None if it cannot be read any more."""
    try:
        return cell_from_json(_artifact(ledger, record, "cell.json").read_bytes())
    except (MlflowException, OSError, ValidationError):
        return None


def table_of(ledger: Ledger, record: RunRecord, name: str) -> pd.DataFrame | None:
    """A run's artifact table, or None if it is gone or damaged."""
    try:
        return pq.read_table(_artifact(ledger, record, f"{name}.parquet")).to_pandas()
    except (MlflowException, OSError, pa.ArrowException):
        return None


def _artifact(ledger: Ledger, record: RunRecord, name: str) -> Path:
    """A local path of an artifact; one that lies on this machine is read in place, which is 10x faster."""
    local = Path(record.artifact_uri.removeprefix("file://"))
    if local.is_absolute():
        return local / name
    return Path(ledger.client.download_artifacts(record.run_id, name))


def is_extended(model: str) -> bool:
    """Whether the model's context was extended by YaRN."""
    return "_yarn_" in model


def _with_extended(frame: pd.DataFrame) -> pd.DataFrame:
    # Typed, as an empty column would otherwise be no mask.
    return frame.assign(extended=pd.Series(map(is_extended, frame.model), frame.index, dtype=bool))


def _row(record: RunRecord) -> dict[str, object]:
    labels = {name: record.params.get(name, "") for name in LABELS}
    if record.kind == "rate_distortion":
        labels["task"] = ""  # a field of that kind, not a label
    return labels | {
        "kind": record.kind,
        "fingerprint": record.fingerprint,
        "parent": record.tags.get("parents", "").split(",")[0],
        "status": record.status,
        "preset": record.tags.get("preset", ""),
        "start": record.start_time,
        "end": record.end_time or record.start_time,
        "record": record,
    }


def _newest_preset(ended: pd.DataFrame) -> str:
    tagged = ended[ended.preset != ""]
    ranked = tagged.assign(done=tagged.state == "done").sort_values(["done", "start"])
    return DEFAULT_PRESET if tagged.empty else str(ranked.preset.iloc[-1])


def _with_ancestors(mine: pd.DataFrame, ended: pd.DataFrame) -> pd.DataFrame:
    """`mine` and all that they build on."""
    parents = dict(zip(ended.fingerprint, ended.parent, strict=True))
    wanted = set(mine.fingerprint)
    frontier = list(wanted)
    while frontier:
        frontier = [p for p in (parents.get(f, "") for f in frontier) if p and p not in wanted]
        wanted.update(frontier)
    return ended[ended.fingerprint.isin(wanted)].reset_index(drop=True)


def _configs(ledger: Ledger, runs: pd.DataFrame) -> list[str]:
    """A hash of each run's settings but the seed, over its whole lineage, and of the code's version."""
    by_fingerprint = dict(zip(runs.fingerprint, runs.record, strict=True))
    known: dict[str, str] = {}

    def config(fingerprint: str) -> str:
        # A base that is not there any more stands for itself: nothing is pooled on a guess.
        record = by_fingerprint.get(fingerprint)
        if record is None:
            return fingerprint
        if fingerprint not in known:
            own = {k: v for k, v in record.params.items() if k not in _WITHIN_A_CONFIGURATION}
            parents = [config(p) for p in record.tags.get("parents", "").split(",") if p]
            text = json.dumps([record.kind, own, parents], sort_keys=True)
            known[fingerprint] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return known[fingerprint]

    # Versions are part of fingerprints, not of params; the preset's own cells have this code's.
    return [
        config(row.fingerprint) + ("" if row.expected else _other_version(ledger, row.record))
        for row in runs.itertuples()
    ]


def _other_version(ledger: Ledger, record: RunRecord) -> str:
    """ "" of a cell that this code would do under the same fingerprint, else the commit that did it."""
    cell = cell_of(ledger, record)
    if cell is not None and cell.fingerprint == record.fingerprint:
        return ""
    return f" {record.tags.get('git_commit', 'another version')}"


def _counts(values: Iterable[str]) -> dict[str, int]:
    return {str(k): int(n) for k, n in pd.Series(list(values), dtype=object).value_counts().items()}
