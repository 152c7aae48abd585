"""What lies under a home that no ledger entry needs, and its removal.

Folders are listed before the ledger is asked: what a run wrote that was claimed meanwhile is not among them.
Whatever a run that is not finished may still read is kept, as is all that a live one may be writing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

from mlflow.exceptions import MlflowException
from pydantic import ValidationError

from metatok.errors import ConfigError, without_credentials
from metatok.experiment.design import Cell, Preset, distinct_inputs, with_ancestors
from metatok.experiment.home import Home
from metatok.experiment.inputs import Inputs
from metatok.experiment.ledger.index import RunSummary, by_fingerprint
from metatok.experiment.ledger.ledger import Ledger
from metatok.experiment.ledger.owner import owner_is_alive
from metatok.experiment.ledger.standing import si

logger = logging.getLogger(__name__)

# What nobody has touched for so long has no writer any more.
IDLE_SECONDS = 3600.0


@dataclass(frozen=True)
class Leftover:
    """A file or folder that nothing needs, why, and its size in bytes."""

    path: Path
    why: str
    size: int


def collect(home: Home, ledger: Ledger, remove: bool) -> None:
    """Print the leftovers under the home; remove them if asked. Errors: ConfigError as `leftovers`."""
    found = leftovers(home, ledger)
    for item in found:
        print(f"{si(item.size):>6}B  {item.path.relative_to(home.root)}  ({item.why})")
    total = f"{len(found)} leftovers, {si(sum(item.size for item in found))}B, under {home.root}"
    if not remove:
        print(f"{total}" + ("; --remove removes them" if found else ""))
        return
    for item in found:
        if item.path.is_dir():
            shutil.rmtree(item.path)
        else:
            item.path.unlink(missing_ok=True)
    print(f"Removed {total}")


def leftovers(home: Home, ledger: Ledger) -> list[Leftover]:
    """Everything under the home that can go.

    Errors: ConfigError if the ledger has no run for any of the checkpoints, and so is likely another home's,
    or if it has kinds that this process does not know.
    """
    if unknown := ledger.unknown_kinds():
        raise ConfigError(
            f"the ledger has runs of kinds that are not defined here, whose files would look like nobody's: "
            f"{', '.join(unknown)}; import what defines them, then call metatok.experiment.ledger.gc.collect"
        )
    cells = _entries(home.root / "checkpoints")
    checkpoints = {folder: _entries(folder) for folder in cells}
    others = {name: _entries(home.root / name) for name in ("datasets", "spool", "ray")}
    all_runs = ledger.summaries()
    runs = by_fingerprint(all_runs)
    if cells and not any(folder.name in runs for folder in cells):
        raise ConfigError(
            f"MLFLOW_TRACKING_URI={without_credentials(ledger.tracking_uri)} has a run for none of the "
            f"{len(cells)} checkpoints under METATOK_HOME={home.root}; set both to one experiment's"
        )
    found = [
        *_of_checkpoints(checkpoints, runs),
        *_of_datasets(home, ledger, others["datasets"], all_runs),
        *_of_spool(others["spool"], {run.run_id: run for run in all_runs}),
        *_of_ray(others["ray"], all_runs),
    ]
    return [Leftover(path, why, _size(path)) for path, why in found]


Found = Iterator[tuple[Path, str]]


def _of_checkpoints(checkpoints: Mapping[Path, list[Path]], runs: Mapping[str, RunSummary]) -> Found:
    for folder, members in checkpoints.items():
        run = runs.get(folder.name)
        if run is None:
            if _idle(folder):
                yield folder, "no run of this fingerprint"
            continue
        final = run.tags.get("checkpoint", "").rpartition("/")[2]
        superseded = run.status == "FINISHED" and final in {path.name for path in members}
        for path in members:
            if path.name.startswith(".tmp-"):
                if not _live(run) and _idle(path):
                    yield path, "half a checkpoint, its writer is gone"
            elif superseded and path.name != final:
                yield path, f"superseded by {final}"


def _of_datasets(home: Home, ledger: Ledger, members: list[Path], runs: list[RunSummary]) -> Found:
    temporary = [path for path in members if path.name.endswith(".tmp")]
    temporary += [path for folder in members if folder.is_dir() for path in folder.glob(".*.tmp")]
    yield from ((path, "half a data set, its writer is gone") for path in temporary if _idle(path))
    if any(map(_live, runs)):  # a sweep may be about to read what none of its runs has claimed yet
        return
    needed = _needed_inputs(home, ledger, runs)
    if needed is None:
        return
    for path in members:
        if path not in temporary and path not in needed and _idle(path):
            yield path, "no run's cell reads it"


def _needed_inputs(home: Home, ledger: Ledger, runs: list[RunSummary]) -> set[Path] | None:
    """What the cells of all runs and recorded sweeps read; None where some cell cannot be read any more."""
    cells: dict[str, Cell] = {}
    for text in ledger.sweeps():
        try:
            planned = with_ancestors(Preset.model_validate_json(text).cells())
        except ValueError:
            continue  # of another version of the code; its cells that ran are found by their runs
        cells |= {cell.fingerprint: cell for cell in planned}
    for run in runs:
        if run.tags["fingerprint"] in cells:
            continue
        try:
            cells[run.tags["fingerprint"]] = ledger.cell(run.run_id)
        except (MlflowException, OSError, ValidationError) as error:
            logger.warning("run %s: its cell cannot be read (%s); all data sets are kept", run.run_id, error)
            return None
    inputs = Inputs(home.datasets)
    return {
        path for config in distinct_inputs(with_ancestors(cells.values())) for path in inputs.paths(config)
    }


def _of_spool(members: list[Path], runs: Mapping[str, RunSummary]) -> Found:
    for path in members:
        if path.suffix not in (".jsonl", ".tmp") or not _idle(path):
            continue
        run = runs.get(path.stem)
        if run is None:
            yield path, "its run is gone"
        elif run.status == "FINISHED":
            yield path, "its run is finished"


def _of_ray(members: list[Path], runs: list[RunSummary]) -> Found:
    if not any(map(_live, runs)):
        yield from ((path, "Ray's state of a sweep that has ended") for path in members if _idle(path))


def _live(run: RunSummary) -> bool:
    """Whether a process is at work on it."""
    return run.status == "RUNNING" and owner_is_alive(run.tags)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _stats(path: Path) -> Iterator[os.stat_result]:
    """Of the path and all below it, as far as they are still there."""
    below = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    for member in (path, *below):
        with contextlib.suppress(FileNotFoundError):
            yield member.lstat()


def _idle(path: Path) -> bool:
    """Whether nothing in it has been written for IDLE_SECONDS."""
    newest = max((stats.st_mtime for stats in _stats(path)), default=0.0)
    return time.time() - newest > IDLE_SECONDS


def _size(path: Path) -> int:
    return sum(stats.st_size for stats in _stats(path) if not S_ISDIR(stats.st_mode))
