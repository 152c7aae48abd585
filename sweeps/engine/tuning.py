"""A preset's missing cells on Ray: inputs as tasks, then everything under one Tuner."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
# A sweep is resumed from the ledger; Tune's own state grows with each trial and is written at the end alone.
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", str(7 * 24 * 3600))
# Trials are handed out only when they can run, so several may wait for their processes at once.
os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "16")
# A trainer waits for running trials to leave its resources, however long they take.
os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(7 * 24 * 3600))
# It warns workers of a machine that will be taken away, which ours need not know, and costs a process.
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
# Workers wait in each report until the controller has polled it; its default is every 2 s.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.25")
# Each trial is a new thread of its worker, for which glibc would take the next of eight heaps a core.
os.environ.setdefault("MALLOC_ARENA_MAX", "2")

import ray
import torch
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import FIFOScheduler

import metatok
from metatok.experiment import Cell, Home, Ledger, Preset
from metatok.experiment.design import Context, RunSettings
from metatok.experiment.execution import OnProgress, Progress, process_tags, run_cells
from metatok.training.loop import agreed
from sweeps.engine.graph import Graph
from sweeps.engine.inputs import prepare_inputs
from sweeps.engine.leftovers import leftovers_freed
from sweeps.engine.nodes import check_cluster, start_ray
from sweeps.engine.progress import ProgressView, print_summary

REPORT_SECONDS = 5.0
# Results are read from the ledger; Tune's own files of them are not written, and their absence is no news.
logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
# Nor is a sweep resumed from Tune's own state, as Tune says after Ctrl-C; the summary tells what is left.
logging.getLogger("ray.tune.tune").addFilter(
    lambda record: not str(record.msg).startswith(("Experiment has been inter", "Trials did not complete"))
)


def run_missing(
    preset: Preset, home: Home, ledger: Ledger, missing: Sequence[Cell], given_up: Collection[str]
) -> set[str]:
    """Do those cells, bases first, but not what was given up. Returns what failed or was skipped.

    Errors: ConfigError on what the cluster or the inputs cannot do. KeyboardInterrupt, after the summary.
    """
    if not ray.is_initialized():
        start_ray()
    check_cluster(preset.run, missing, home)
    ledger.record_sweep(preset.model_dump_json())  # before anything is made for it
    prepare_inputs(missing, home)
    settings = preset.run
    graph = Graph(missing, ledger, settings.share_trainer, settings.max_retries, given_up)
    if not graph.settled:
        _tune(preset, home, ledger, graph)
    print_summary(graph, ledger, home)
    if not graph.settled:  # Tune ends as if all was well
        raise KeyboardInterrupt
    return graph.failed | graph.skipped


def _tune(preset: Preset, home: Home, ledger: Ledger, graph: Graph) -> None:
    settings = preset.run
    job = {
        "cells": graph.cells,
        "home": home,
        "ledger": ledger,
        "settings": settings,
        "tags": _tags(preset),
    }

    here = tune.PlacementGroupFactory([{"CPU": settings.trial_cpus, "GPU": settings.trial_gpus}])
    # A trial that only waits for its trainer, whose workers claim the CPUs and GPUs; Tune wants something
    # claimed all the same.
    elsewhere = tune.PlacementGroupFactory([{"memory": 1}])

    def resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return elsewhere if config["distributed"] else here

    view = ProgressView(graph, preset.name)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(_run_trial, job=job), resources),
        tune_config=tune.TuneConfig(
            search_alg=graph,
            scheduler=_TrainersServed(),
            num_samples=sys.maxsize,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"sweep-{time.time_ns()}",
            storage_path=str(home.ray),
            verbose=0,
            callbacks=[view, _StatisticsDropped()],
        ),
    )
    with view, leftovers_freed():
        try:
            tuner.fit()
        except Exception as error:  # Tune reads its own files back at the end, which a full disk cuts short
            if not graph.settled:
                raise
            print(f"Tune failed after its last trial ({error!r}); the ledger has the results", flush=True)


class _StatisticsDropped(tune.Callback):
    """Tune keeps every trial to the sweep's end, most of it statistics that nothing reads."""

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        trial.metric_n_steps.clear()
        trial.metric_analysis.clear()

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.on_trial_complete(iteration, trials, trial)


class _TrainersServed(FIFOScheduler):
    """While a trainer may wait for CPUs, no process that has nothing to do holds any.

    Tune keeps one that is idle for whichever trial comes next, which may be one that builds on the trainer's.
    """

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        trainers = any(trial.config["distributed"] for trial in tune_controller.get_live_trials())
        tune_controller._tune_controller._actor_cache._may_keep_one = not trainers
        return super().choose_trial_to_run(tune_controller)


def _run_trial(config: dict[str, Any], job: dict[str, Any]) -> None:
    """One Tune trial: a chain of cells, here or in a group of DDP workers."""
    chosen = [job["cells"][int(i)] for i in config["cells"].split(",")]
    job = job | {"cells": None, "tags": job["tags"] | {"trial": config["trial"]}}
    if config["distributed"]:
        _run_distributed(chosen, job)
        return
    context = Context(job["home"], job["settings"], device="cuda" if torch.cuda.is_available() else "cpu")
    run_cells(chosen, job["ledger"], context, job["tags"] | process_tags(), _throttled(tune.report))


def _throttled(report: Callable[[dict[str, Any]], None]) -> OnProgress:
    """Every end of a cell, and of the steps between one each REPORT_SECONDS; the same ones on every rank."""
    last = 0.0

    def tell(progress: Progress) -> None:
        nonlocal last
        if progress.status != "running" or agreed(time.monotonic() - last > REPORT_SECONDS):
            last = time.monotonic()
            report(_as_result(progress))

    return tell


def _run_distributed(chosen: Sequence[Cell], job: dict[str, Any]) -> None:
    settings: RunSettings = job["settings"]
    # Ray Train's cleaner, which frees a dead controller's resources, asks for the state of actors without
    # saying of which Ray; where a machine runs several, that kills it.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    ENV_VARS_TO_PROPAGATE.add("RAY_ADDRESS")
    resources = {"CPU": settings.train_cpus} | ({"GPU": settings.train_gpus} if settings.train_gpus else {})
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"cells": chosen, "job": job},
        scaling_config=train.ScalingConfig(
            num_workers=settings.workers, use_gpu=settings.train_gpus > 0, resources_per_worker=resources
        ),
        run_config=train.RunConfig(
            name=f"train-{time.time_ns()}",
            storage_path=str(job["home"].ray),
            callbacks=[TuneReportCallback()],
            logging_config=train.LoggingConfig(log_level="WARNING"),
        ),
    )
    trainer.fit()


def _train_worker(config: dict[str, Any]) -> None:
    """One rank. All ranks report alike, since a report is a barrier."""
    logging.getLogger().setLevel(logging.WARNING)  # Ray Train logs each report at INFO
    job = config["job"]
    context = Context(job["home"], job["settings"], device=str(train.torch.get_device()))
    run_cells(
        config["cells"],
        job["ledger"],
        context,
        job["tags"] | process_tags(),
        _throttled(train.report),
    )


def _as_result(progress: Progress) -> dict[str, Any]:
    metrics = progress.metrics or {}
    return {
        "fingerprint": progress.cell.fingerprint,
        "status": progress.status,
        "step": progress.step,
        "loss": metrics.get("loss"),
        "tokens_per_second": metrics.get("tokens_per_second"),
        "error": progress.error,
    }


def _tags(preset: Preset) -> dict[str, str]:
    versions = {f"version.{name}": importlib.metadata.version(name) for name in ("torch", "ray", "mlflow")}
    return {
        "preset": preset.name,
        "sweep": f"{preset.name}-{time.strftime('%Y%m%dT%H%M%S')}",
        "version.metatok": metatok.__version__,
        "version.python": sys.version.split()[0],
        **versions,
        **_git_tags(),
    }


def _git_tags() -> dict[str, str]:
    """Commit and whether the tree differs from it; unknown where the code is no git checkout."""
    folder = Path(metatok.__file__).parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = bool(git("status", "--porcelain"))
        return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": str(dirty).lower()}
    except (OSError, subprocess.CalledProcessError):
        return {"git_commit": "unknown", "git_dirty": "unknown"}
