"""What the ledger has, at a glance: one row a run, without its params and curves.

MLflow's search loads each run whole, which takes seconds at thousands of runs. Where the store is a database
that this process reads, its tables are asked instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy
from mlflow.entities import Run

TAGS = (
    "fingerprint",
    "owner",
    "heartbeat",
    "claimed",
    "checkpoint",
    "trial",
    "error",
    "out_of_memory",
    "diverged",
)

_QUERY = sqlalchemy.text(
    """
    SELECT runs.run_uuid, runs.status, runs.start_time, runs.end_time, tags.key, tags.value
    FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
    WHERE runs.lifecycle_stage = 'active' AND runs.experiment_id IN :experiments AND tags.key IN :tags
    ORDER BY runs.start_time, runs.run_uuid
    """
).bindparams(*(sqlalchemy.bindparam(name, expanding=True) for name in ("experiments", "tags")))


@dataclass(frozen=True)
class RunSummary:
    """Times are in milliseconds since 1970; `tags` are those of TAGS that the run has."""

    run_id: str
    status: str
    start_time: int
    end_time: int | None
    tags: Mapping[str, str]


def query(uri: str, experiment_ids: Iterable[str]) -> list[RunSummary]:
    """The runs of the experiments in the database at `uri`, oldest first."""
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
    runs: dict[str, RunSummary] = {}
    tags: dict[str, dict[str, str]] = {}
    parameters = {"experiments": [int(number) for number in experiment_ids], "tags": TAGS}
    with engine.connect() as connection:
        for run_id, status, start, end, key, value in connection.execute(_QUERY, parameters):
            if run_id not in runs:
                runs[run_id] = RunSummary(run_id, status, start, end, tags.setdefault(run_id, {}))
            tags[run_id][key] = value
    return list(runs.values())


def by_fingerprint(runs: Iterable[RunSummary]) -> dict[str, RunSummary]:
    """fingerprint -> its run; of several a finished one."""
    return {run.tags["fingerprint"]: run for run in sorted(runs, key=lambda run: run.status == "FINISHED")}


def summary(run: Run) -> RunSummary:
    info = run.info
    tags = {name: run.data.tags[name] for name in TAGS if name in run.data.tags}
    return RunSummary(info.run_id, info.status, info.start_time, info.end_time, tags)
