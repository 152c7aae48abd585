"""The ledger: one MLflow run a cell, tagged with its fingerprint; done is what says FINISHED."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from metatok.errors import ConfigError, first_line, without_credentials
from metatok.experiment.design import Cell, cell_from_json, kind_names
from metatok.experiment.home import Home, is_server
from metatok.experiment.ledger.index import RunSummary, query, summary
from metatok.experiment.ledger.owner import Watch, owner_of_this_process
from metatok.experiment.ledger.run import CellRun, is_away, once_it_is_back

logger = logging.getLogger(__name__)
for noisy in ("mlflow.store.db.utils", "alembic"):  # a fresh database is no news
    logging.getLogger(noisy).setLevel(logging.WARNING)

PAGE = 1000
SERVER_WORKERS = 4  # that an MLflow server has, unless told otherwise


@dataclass(frozen=True)
class RunRecord:
    """A run as reports read it. params hold the cell's labels and own fields, as strings."""

    kind: str
    fingerprint: str
    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    artifact_uri: str
    start_time: int
    end_time: int | None


@dataclass(frozen=True)
class SweepRecord:
    """A sweep that ran here: its id, when it last started (s since 1970), its resolved preset (JSON)."""

    id: str
    time: float
    preset: str

    @property
    def name(self) -> str:
        """The preset's name."""
        return json.loads(self.preset)["name"]


def experiment_name(kind: str) -> str:
    return f"metatok/{kind}"


class Ledger:
    """The runs behind one tracking URI. Open it once on the driver, which makes what is missing."""

    def __init__(self, tracking_uri: str, spool: Path, experiments: dict[str, str]):
        self.tracking_uri = tracking_uri
        self.spool = spool
        self.experiments = experiments
        self.client = MlflowClient(tracking_uri)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ledger, (self.tracking_uri, self.spool, self.experiments)

    @classmethod
    def open(cls, home: Home | None = None) -> Ledger:
        """The ledger of `home`, its database and experiments made where missing.

        Errors: ConfigError if the tracking URI does not answer.
        """
        home = home or Home.open()
        uri = home.tracking_uri
        home.check_answers()
        try:
            # MLflow cannot set up a fresh database in two processes at once.
            with _locked(home.spool / "open.lock"):
                client = MlflowClient(uri)
                experiments = {kind: _experiment(client, uri, home, kind) for kind in kind_names()}
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise ConfigError(
                f"MLFLOW_TRACKING_URI={without_credentials(uri)} does not answer as an MLflow store "
                f"({first_line(error)}); "
                "start the server, or unset it to use $METATOK_HOME/mlflow.db"
            ) from None
        return cls(uri, home.spool, experiments)

    def unknown_kinds(self) -> list[str]:
        """Kinds of which the store has an experiment, but this process no definition."""
        found = self.client.search_experiments(filter_string=f"name LIKE '{experiment_name('%')}'")
        return sorted({each.name for each in found} - {experiment_name(kind) for kind in self.experiments})

    def finished(self) -> dict[str, str]:
        """fingerprint -> run id of every finished cell."""
        return {run.tags["fingerprint"]: run.run_id for run in self.summaries() if run.status == "FINISHED"}

    def summaries(self) -> list[RunSummary]:
        """Every cell's run at a glance, oldest first."""
        if not is_server(self.tracking_uri):
            runs = query(self.tracking_uri, self.experiments.values())
            return [run for run in runs if "fingerprint" in run.tags]
        # Most of the wait is the server's loading of runs, which its workers do side by side.
        parts = (f"tags.fingerprint LIKE '{digit}%'" for digit in string.hexdigits[:16])
        with ThreadPoolExecutor(SERVER_WORKERS) as pool:
            pages = pool.map(partial(self._search, tuple(self.experiments.values())), parts)
            found = [summary(run) for page in pages for run in page]
        return sorted(found, key=lambda run: (run.start_time, run.run_id))

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those of `cells` that are not finished, in their order."""
        wanted = list(cells)
        finished = self.finished() if wanted else {}
        return [cell for cell in wanted if cell.fingerprint not in finished]

    def records(self, kind: str, status: str | None = "FINISHED") -> list[RunRecord]:
        """The runs of a kind, oldest first; status None = all."""
        query = f"attributes.status = '{status}'" if status else ""
        runs = self._search([self.experiments[kind]], query)
        return [_record(kind, run) for run in reversed(runs)]

    def table(self, record: RunRecord, name: str) -> pa.Table:
        """The artifact `name`.parquet of a run."""
        path = self.client.download_artifacts(record.run_id, f"{name}.parquet")
        return pq.read_table(path)

    def cell(self, run_id: str) -> Cell:
        """The cell that a run did. Errors: MlflowException, OSError, ValidationError if it cannot be read."""
        return cell_from_json(Path(self.client.download_artifacts(run_id, "cell.json")).read_bytes())

    def checkpoint_uri(self, fingerprint: str) -> str:
        """Address of the checkpoints of a finished cell. Errors: LookupError if it has none."""
        run = self._by_fingerprint(fingerprint)
        uri = None if run is None else run.data.tags.get("checkpoint")
        if uri is None:
            raise LookupError(f"no finished run of fingerprint {fingerprint[:12]} with a checkpoint")
        return uri

    def record_sweep(self, preset: str) -> None:
        """Keep a sweep's resolved preset (JSON), so that a report knows which cells the sweep is made of."""
        digest = hashlib.sha256(preset.encode()).hexdigest()[:12]
        value = json.dumps({"time": time.time(), "preset": json.loads(preset)})
        self.client.set_experiment_tag(self.experiments["pretrain"], f"sweep.{digest}", value)

    def recorded_sweeps(self) -> list[SweepRecord]:
        """All sweeps that ran here, the latest last."""
        tags = self.client.get_experiment(self.experiments["pretrain"]).tags
        found = [
            SweepRecord(name.removeprefix("sweep."), content["time"], json.dumps(content["preset"]))
            for name, value in tags.items()
            if name.startswith("sweep.")
            for content in [json.loads(value)]
        ]
        return sorted(found, key=lambda sweep: sweep.time)

    def sweeps(self) -> list[str]:
        """The resolved presets (JSON) of all sweeps that ran here, the latest last."""
        return [sweep.preset for sweep in self.recorded_sweeps()]

    def claim(
        self,
        cell: Cell,
        tags: Mapping[str, str],
        poll_seconds: float = 1.0,
        on_wait: Callable[[], object] = lambda: None,
    ) -> CellRun | None:
        """A run to write the cell's results to, or None if the cell is finished.

        A run that something left behind (its process is gone, or its heartbeat stale) is re-opened; one that
        another process is working on is waited for. on_wait is called at every look while it waits.
        """
        announced = False
        watch = Watch()
        while True:
            try:
                with _locked(self.spool / f"claim-{cell.fingerprint[0]}.lock"):
                    runs = self._runs_of(cell.fingerprint) or self._create(cell, tags)
                    if runs and runs[0].info.status == "FINISHED":
                        return None
                    at_work = [run for run in runs if watch.at_work(run)]
                    if runs and not at_work:
                        # Its owner may have finished since, then gone.
                        run = self.client.get_run(runs[0].info.run_id)
                        return None if run.info.status == "FINISHED" else self._take(run, cell, tags)
            except Exception as error:
                if not is_away(error):
                    raise
                logger.warning("the ledger is away (%s); waiting for it", first_line(error))
                watch.store_was_away()
            else:
                if at_work and not announced:
                    owner = at_work[0].data.tags["owner"]
                    logger.warning("%s %s is being run by %s; waiting", cell.kind, cell.id, owner)
                    announced = True
            on_wait()
            time.sleep(poll_seconds)

    def runs(self, fingerprints: Iterable[str]) -> dict[str, RunSummary]:
        """fingerprint -> its run at a glance, for those that have one. Waits for a store that is away."""
        found = {key: once_it_is_back(partial(self._by_fingerprint, key)) for key in fingerprints}
        return {key: summary(run) for key, run in found.items() if run is not None}

    def set_tag(self, fingerprint: str, name: str, value: str) -> None:
        """Tag the run of a cell. Any rank may, as the one that alone knows."""
        for run in self.runs([fingerprint]).values():
            once_it_is_back(partial(self.client.set_tag, run.run_id, name, value))

    def _create(self, cell: Cell, tags: Mapping[str, str]) -> list[Run]:
        """A new run, or none if another process made one at the same moment and came first."""
        all_tags = dict(tags) | {
            "fingerprint": cell.fingerprint,
            "parents": ",".join(parent.fingerprint for parent in cell.parents),
            "owner": owner_of_this_process(),
            "heartbeat": f"{time.time():.0f}",
        }
        experiment = self.experiments[cell.kind]
        run = self.client.create_run(experiment, tags=all_tags, run_name=cell.slug)
        if self._runs_of(cell.fingerprint)[0].info.run_id != run.info.run_id:
            self.client.delete_run(run.info.run_id)
            return []
        return [run]

    def _take(self, run: Run, cell: Cell, tags: Mapping[str, str]) -> CellRun:
        """The run to write to, now this process's."""
        run_id = run.info.run_id
        if not run.data.params:  # new, or its maker died before it got that far
            self.client.log_text(run_id, cell.model_dump_json(indent=1), "cell.json")
            params = [Param(k, v) for k, v in flat_params(cell).items()]
            for start in range(0, len(params), 100):
                self.client.log_batch(run_id, params=params[start : start + 100])
        return CellRun(self.client, run_id, cell, self.spool, dict(tags))

    def _by_fingerprint(self, fingerprint: str) -> Run | None:
        return next(iter(self._runs_of(fingerprint)), None)

    def _runs_of(self, fingerprint: str) -> list[Run]:
        """A cell's runs, the one that counts first."""
        runs = self._search(self.experiments.values(), f"tags.fingerprint = '{fingerprint}'")
        return sorted(runs, key=_precedence)

    def _search(self, experiment_ids: Iterable[str], query: str) -> list[Run]:
        """All matching runs, newest first."""
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(list(experiment_ids), query, max_results=PAGE, page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs


def flat_params(cell: Cell) -> dict[str, str]:
    """The labels and own fields of a cell as MLflow params: dotted names, lists as JSON."""
    params: dict[str, str] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{prefix}.{key}" if prefix else key, inner)
        else:
            params[prefix] = value if isinstance(value, str) else json.dumps(value)

    visit("", cell.own_fields())
    return params | {key: str(value) for key, value in cell.labels.items()}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process; a file system that has none goes without."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            logger.debug("no lock on %s: %s", path, error)
        yield


def _precedence(run: Run) -> tuple[bool, bool, int, str]:
    """What is finished comes first, then what has been worked on, then what is older."""
    info = run.info
    return (info.status != "FINISHED", "claimed" not in run.data.tags, info.start_time, info.run_id)


def _record(kind: str, run: Run) -> RunRecord:
    return RunRecord(
        kind=kind,
        fingerprint=run.data.tags.get("fingerprint", ""),
        run_id=run.info.run_id,
        name=run.info.run_name,
        status=run.info.status,
        params=run.data.params,
        metrics=run.data.metrics,
        tags=run.data.tags,
        artifact_uri=run.info.artifact_uri,
        start_time=run.info.start_time,
        end_time=run.info.end_time,
    )


def _experiment(client: MlflowClient, uri: str, home: Home, kind: str) -> str:
    name, shown = experiment_name(kind), without_credentials(uri)
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise ConfigError(
            f"experiment {name} is deleted in the ledger {shown}; bring it back with "
            f"`MLFLOW_TRACKING_URI={shown} mlflow experiments restore -x {found.experiment_id}`, or remove "
            "it for good with "
            f"`mlflow gc --backend-store-uri DATABASE --experiment-ids {found.experiment_id}`"
        )
    if found is not None:
        return found.experiment_id
    # A tracking server keeps artifacts where it was told to; a bare database needs a folder from us.
    location = None if is_server(uri) else str(home.artifacts / kind)
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException as error:
        made_meanwhile = client.get_experiment_by_name(name)  # by one who opens it from another home
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or made_meanwhile is None:
            raise
        return made_meanwhile.experiment_id
