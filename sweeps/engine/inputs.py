"""Makes what cells read, on Ray: tokenizers, then shards (a task a source file) and task data sets."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import ray
from rich.status import Status

from metatok.data.corpus import open_corpus, unusable
from metatok.data.shards import describe_problems
from metatok.data.tokenize import Progress
from metatok.errors import ConfigError
from metatok.experiment import Cell, Home
from metatok.experiment.design import distinct_inputs
from metatok.experiment.inputs import InputConfig, Inputs, ShardsConfig
from metatok.experiment.ledger.standing import clock, si
from sweeps.engine.plan_view import console
from sweeps.engine.progress import LINE_SECONDS

REPORT_SECONDS = 2.0
MAX_THREADS = 8

Unit = tuple[ShardsConfig, str]  # a source file of a corpus


def prepare_inputs(missing: Sequence[Cell], home: Home) -> None:
    """Makes what is missing of the cells' inputs, and tells how it goes. Errors: ConfigError."""
    inputs = Inputs(home.datasets)
    todo = [config for config in distinct_inputs(missing) if not inputs.ready(config)]
    if not todo:
        return
    print(f"Preparing {len(todo)} inputs under {home.datasets}", flush=True)
    start = time.monotonic()
    tokenizers = {inputs.tokenizer_path(config.tokenizer, config.corpus): config for config in todo}
    for job in [_make_tokenizer.remote(inputs, config) for config in tokenizers.values()]:
        _get(job)
    corpora = [config for config in todo if isinstance(config, ShardsConfig)]
    weights: dict[Unit, float] = {}
    for config in corpora:
        corpus = open_corpus(config.corpus, check=False)
        weights |= {(config, file): corpus.weight(file) for file in corpus.files}
    threads = _threads(len(weights))
    tokenizing = _tokenize.options(num_cpus=threads)
    units = {tokenizing.remote(inputs, *unit, threads): unit for unit in weights}
    data_sets = [_build_dataset.remote(inputs, config) for config in todo if config not in corpora]
    with InputsView(weights, len(data_sets)) as view:
        waiting = [*units, *data_sets]
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=1.0)
            for job in ready:
                if job not in units:
                    _get(job)
                    view.data_sets_done += 1
                elif (progress := next(job, None)) is not None:
                    view.progress[units[job]] = _get(progress)
                    waiting.append(job)
            view.show()
    for config in corpora:
        print(_summary(inputs, config), flush=True)
    print(f"Inputs ready after {clock(time.monotonic() - start)}", flush=True)


def _threads(units: int) -> int:
    """Threads a source file: more than one where there are fewer files than CPUs."""
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    share = sum(nodes) // max(1, units)
    return int(max(1, min(share, MAX_THREADS, *(cpus for cpus in nodes if cpus))))


def _summary(inputs: Inputs, config: ShardsConfig) -> str:
    """What became of a corpus; what was wrong in it is never silent."""
    shards = inputs.finish_shards(config)
    documents = sum(part.documents for manifest in shards.manifests for part in manifest.parts.values())
    parts = [
        f"Corpus {config.corpus.source}: {documents:,} documents",
        f"{si(len(shards.train))} tokens to train on, {si(len(shards.validation))} to validate on",
        describe_problems(shards.manifests),
    ]
    return "; ".join(filter(None, parts))


def _get(job: ray.ObjectRef) -> Any:
    """A task's result; a user's mistake that it met is told as here, without its remote traceback."""
    try:
        return ray.get(job)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ConfigError):
            raise ConfigError(str(error.cause)) from None
        raise


@ray.remote
def _make_tokenizer(inputs: Inputs, config: InputConfig) -> None:
    inputs.tokenizer(config.tokenizer, config.corpus)


# A hub or a file system that fails for a moment is asked again; what is finished is left alone.
@ray.remote(max_retries=3, retry_exceptions=[OSError])
def _tokenize(inputs: Inputs, config: ShardsConfig, file: str, threads: int) -> Iterator[Progress]:
    last = time.monotonic()
    for progress in inputs.tokenize(config, file, threads):
        if progress.manifest is not None or time.monotonic() - last > REPORT_SECONDS:
            last = time.monotonic()
            yield progress


@ray.remote
def _build_dataset(inputs: Inputs, config: InputConfig) -> None:
    inputs.task_dataset(config)


class InputsView:
    """A live line in a terminal; elsewhere a line every 30 s.

    weights: source file -> its size relative to the others'. progress: source file -> how far it is.
    """

    def __init__(self, weights: Mapping[Unit, float], data_sets: int) -> None:
        self.progress: dict[Unit, Progress] = {}
        self.data_sets_done = 0
        self._weights = weights
        self._data_sets = data_sets
        self._start = self._shown = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._status = console.status(self.line(0.0))
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self) -> None:
        now = time.monotonic()
        if self._status is not None:
            self._status.update(self.line(now - self._start))
        elif now - self._shown > LINE_SECONDS:
            self._shown = now
            print(self.line(now - self._start), flush=True)

    def line(self, elapsed: float) -> str:
        """Where it stands after so many seconds: files, text read and its speed, tokens, time left.

        Files that an earlier run finished count as done, but neither for the speed nor for the time left.
        """
        parts = []
        if self._weights:
            finished = sum(p.manifest is not None for p in self.progress.values())
            here = {unit: p for unit, p in self.progress.items() if not p.already_there}
            megabytes = sum(p.characters for p in here.values()) / 1e6
            done = sum(self._weights[unit] * p.share for unit, p in here.items())
            there = sum(self._weights[unit] for unit in self.progress.keys() - here.keys())
            left = sum(self._weights.values()) - there - done
            parts.append(
                f"corpus {finished}/{len(self._weights)} files, {megabytes:,.1f} MB at "
                f"{megabytes / max(elapsed, 1e-9):.1f} MB/s, "
                f"{si(sum(p.tokens for p in self.progress.values()))} tokens, "
                f"ETA {clock(elapsed * left / done) if done else '?'}"
            )
        if self._data_sets:
            parts.append(f"data sets {self.data_sets_done}/{self._data_sets}")
        if bad := sum(unusable(p.problems) for p in self.progress.values()):
            parts.append(f"{bad:,} documents left out")
        return f"[{clock(elapsed)}] {'; '.join(parts)}"
