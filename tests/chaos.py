"""Faults at random moments of a smallest sweep: `python -m tests.chaos --rounds 20 --seed 0`.

Each round runs the sweep in a fresh home, does to it one thing that a sweep must survive, runs the same
command until it says that all is finished, and compares what the home then holds with what the same cells
leave that run undisturbed and without Ray.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import psutil
import torch
import torch.distributed as dist
import tyro
from rich.console import Console
from rich.table import Table

from metatok.experiment import Home, Ledger, RunRecord
from metatok.experiment.design import Context, kind_names, with_ancestors
from metatok.experiment.execution import run_cells
from metatok.training import CheckpointStore
from sweeps.engine.cli import parse
from tests.sweeps.conftest import ROOT, environment, script

# A pre-training, a fine-tune of it and three ablations of that. Both trainings have many checkpoints, and the
# fine-tune outlasts several faults, as its process goes on for some steps after each.
ARGUMENTS = """
    --preset smoke --models meta_ape --tasks parity --finetune.train-lengths 64
    --pretrain.steps 40 --finetune.steps 400 --finetune.n-train 256 --finetune.n-test 10
    --run.log-every 2 --run.checkpoint-every 4
""".split()  # noqa: SIM905 (a command line reads better as one)
COMMAND = script("sweeps/ablate.py", *ARGUMENTS)
PATIENCE = 300.0  # seconds for one attempt
DISK = "48m"  # the sweep needs less than 20 MB

Fault = Literal["driver", "trial", "worker", "raylet", "interrupt", "disk", "rival"]


class Sweep:
    """The sweep in a home, to be run, disturbed and run again.

    cluster: a ray.cluster_utils.Cluster to join; without, each attempt starts Ray itself.
    """

    def __init__(self, home: Path, cluster: Any = None):
        self.home = Home.open(home)
        self.ledger = Ledger.open(self.home)
        self.cells = with_ancestors(parse(ARGUMENTS, "ablate", "").fields.cells())
        self.cluster = cluster
        self.attempts = 0
        self.log = home.with_suffix(".log")
        self.process: subprocess.Popen | None = None
        self.rival: subprocess.Popen | None = None

    def start(self) -> None:
        self.attempts += 1
        self.process = self._launch(f"attempt {self.attempts}")

    def start_rival(self) -> None:
        """The same command a second time, beside the attempt."""
        self.rival = self._launch("rival")

    def _launch(self, name: str) -> subprocess.Popen:
        joined = {}
        if self.cluster:  # with the authentication it was started with
            kept = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
            joined = {name: os.environ[name] for name in kept if name in os.environ}
            joined["RAY_ADDRESS"] = self.cluster.address
        with self.log.open("a") as log:
            log.write(f"--- {name}\n")
            log.flush()
            return subprocess.Popen(
                COMMAND, env=environment(self.home.root, **joined), cwd=ROOT, stdout=log, stderr=log,
                start_new_session=True,
                # A shell has its background jobs ignore Ctrl-C, which children inherit.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        """The exit code of the attempt. Errors: TimeoutExpired."""
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def complete(self, attempts: int = 3) -> None:
        """Run the command until it exits with 0, and the rival ends too.

        Errors: AssertionError after that many attempts in all.
        """
        while not (self.process is not None and self.wait() == 0):
            assert self.attempts < attempts, f"attempt {self.attempts} exited with {self.process.returncode}"
            self.start()
        if self.rival is not None:
            self.rival.wait(PATIENCE)

    def close(self) -> None:
        for process in (self.process, self.rival):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until it holds, or the attempt has ended."""
        while self.running() and not condition():
            time.sleep(0.2)

    def reached(self, kind: str) -> int:
        """The newest checkpoint of the first cell of that kind; 0 if none."""
        cell = next(cell for cell in self.cells if cell.kind == kind)
        return max([0, *CheckpointStore(self.home.checkpoints(cell.fingerprint)).steps()])

    def processes(self, title: str) -> list[psutil.Process]:
        """Ray's processes of this sweep whose title has that word."""
        roots = [node.all_processes["raylet"][0].process.pid for node in self.nodes()]
        found = []
        for root in roots or ([self.process.pid] if self.process is not None else []):
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(root).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if title in " ".join(process.cmdline()):
                            found.append(process)
        return found

    def nodes(self) -> list[Any]:
        return list(self.cluster.list_all_nodes()) if self.cluster else []


def strike(sweep: Sweep, fault: Fault, chance: random.Random) -> bool:
    """Do it, once there is something to do it to. False if the attempt ended before."""
    if sweep.process is None or not sweep.running():
        return False
    if fault == "driver":
        sweep.process.kill()
    elif fault == "interrupt":
        os.killpg(sweep.process.pid, signal.SIGINT)  # as a terminal sends it
    elif fault == "disk":
        return _fill_disk(sweep, chance)
    elif fault == "rival":
        sweep.start_rival()
    else:
        title = "RayTrainWorker" if fault == "worker" else "ImplicitFunc.train"
        sweep.until(lambda: sweep.processes(title))
        victims = sweep.processes(title)
        if not victims:
            return False
        victim = chance.choice(victims)
        if fault == "raylet":
            node = next(n for n in sweep.nodes() if _raylet(n).pid == victim.ppid())
            if node.is_head():
                node = next(n for n in sweep.nodes() if not n.is_head())
            sweep.cluster.remove_node(node, allow_graceful=False)
        else:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
    return True


def _raylet(node: Any) -> Any:
    return node.all_processes["raylet"][0].process


def _fill_disk(sweep: Sweep, chance: random.Random) -> bool:
    """Leave not a byte for some seconds, or until the attempt has ended."""
    ballast = sweep.home.root / "ballast"
    end = time.monotonic() + chance.uniform(3, 20)
    while time.monotonic() < end and sweep.running():  # what is deleted meanwhile is filled up too
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(0.2)
    ballast.unlink()
    return True


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own at `folder`, in memory. Errors: PermissionError where none can be mounted."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)])
    if mounted.returncode:
        raise PermissionError("mounting a tmpfs takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def several_nodes() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine, the head without CPUs so that all work is elsewhere."""
    from ray.cluster_utils import Cluster

    Path("/tmp/ray").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        dashboard = {"include_dashboard": True, "dashboard_port": probe.getsockname()[1]}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **dashboard})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@dataclass
class Facts:
    """What a home holds after a sweep, but for what differs from run to run: ids, times and speeds."""

    runs: list[tuple[str, str]] = field(default_factory=list)  # fingerprint, status
    numbers: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    tables: dict[str, dict[str, str]] = field(default_factory=dict)  # fingerprint -> artifact -> sha256
    checkpoints: dict[str, str] = field(default_factory=dict)  # path -> sha256
    unsent: list[str] = field(default_factory=list)


def all_records(ledger: Ledger) -> list[RunRecord]:
    """The runs of every kind and status."""
    return [record for kind in kind_names() for record in ledger.records(kind, None)]


def facts(home: Home) -> Facts:
    """Every point of every curve in the order of logging, every number, table and checkpoint."""
    ledger, found = Ledger.open(home), Facts()
    for record in all_records(ledger):
        key = f"{record.kind} {record.fingerprint[:12]}"
        found.runs.append((key, record.status))
        found.numbers[key] = {
            name: [
                (point.step, 0.0 if name == "tokens_per_second" else point.value)
                for point in ledger.client.get_metric_history(record.run_id, name)
            ]
            for name in record.metrics
        }
        folder = Path(record.artifact_uri.removeprefix("file://"))
        found.tables[key] = {path.name: _digest(path) for path in folder.glob("*.parquet")}
    found.runs.sort()
    root = home.root / "checkpoints"
    found.checkpoints = {
        str(path.relative_to(root)): _digest(path) for path in sorted(root.rglob("*")) if path.is_file()
    }
    found.unsent = [path.name for path in home.spool.glob("*.jsonl")]
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def differences(found: Facts, wanted: Facts) -> list[str]:
    """In words, nothing if there are none."""
    told = []
    for section, value in vars(wanted).items():
        told += _differences(section, getattr(found, section), value)
    return told


def _differences(where: str, found: Any, wanted: Any) -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        return [line for k in keys for line in _differences(f"{where} {k}", found.get(k), wanted.get(k))]
    if isinstance(found, list) and isinstance(wanted, list):
        extra = [item for item in found if item not in wanted]
        lacking = [item for item in wanted if item not in found]
        shown = f"{len(found)} instead of {len(wanted)}, extra {extra[:3]}, lacking {lacking[:3]}"
        return [] if found == wanted else [f"{where}: {shown}"]
    return [] if found == wanted else [f"{where}: {found} instead of {wanted}"]


@dataclass
class Round:
    """How one went. moment: seconds after the start of the command."""

    fault: Fault
    moment: float
    done: int = 0
    attempts: int = 0
    verdict: str = ""


def play(fault: Fault, moment: float, chance: random.Random, reference: Facts) -> Round:
    """One round in a fresh home."""
    result = Round(fault, moment)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))) / "home"
        if fault == "disk":
            stack.enter_context(small_disk(folder))
        sweep = Sweep(folder, stack.enter_context(several_nodes()) if fault == "raylet" else None)
        stack.callback(sweep.close)
        sweep.start()
        start = time.monotonic()
        sweep.until(lambda: time.monotonic() - start > moment)
        struck = strike(sweep, fault, chance)
        result.done = len(sweep.ledger.finished())
        try:
            sweep.complete()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            wrong = [str(error)]
        else:
            wrong = differences(facts(sweep.home), reference)
            if fault == "rival" and struck:
                assert sweep.rival is not None
                wrong += [f"the rival exited with {code}" for code in [sweep.rival.returncode] if code]
                wrong += [f"{r.name} was taken over" for r in taken_over(all_records(sweep.ledger))]
        result.attempts = sweep.attempts
        result.verdict = "; ".join(wrong) or ("ok" if struck else "ok (over before the fault)")
        if wrong:
            kept = shutil.copy(sweep.log, f"{tempfile.gettempdir()}/chaos-{fault}-{time.time():.0f}.log")
            result.verdict += f"; log {kept}"
    return result


def taken_over(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Those that were claimed again after their start."""
    return [r for r in records if abs(float(r.tags["claimed"]) - r.start_time / 1000) > 5]


def without_ray(home: Path) -> Facts:
    """What a home holds where plain processes run the cells, two for the pre-training as in the preset."""
    torch.multiprocessing.spawn(_run_as_rank, (home,), nprocs=2)
    return facts(Home.open(home))


def _run_as_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}-rendezvous", rank=rank, world_size=2)
    sweep = Sweep(folder)
    context = Context(sweep.home, parse(ARGUMENTS, "ablate", "").fields.run)
    run_cells([cell for cell in sweep.cells if cell.kind == "pretrain"], sweep.ledger, context, {})
    dist.destroy_process_group()
    if rank == 0:
        run_cells(sweep.cells, sweep.ledger, context, {})


def main(rounds: int = 20, seed: int = 0, faults: Sequence[Fault] = get_args(Fault)) -> int:
    """Play rounds of random faults, each kind equally often, and print a table. 1 if one went wrong."""
    chance = random.Random(seed)
    order = [fault for _ in range(0, rounds, len(faults)) for fault in chance.sample(faults, len(faults))]
    table = Table("round", "fault", "moment", "cells done", "attempts", "verdict", title=f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        reference = without_ray(Path(folder) / "home")
        sweep = Sweep(Path(folder) / "undisturbed")
        start = time.monotonic()
        sweep.complete(attempts=1)
        seconds = time.monotonic() - start
        wrong = differences(facts(sweep.home), reference)
        print(f"undisturbed: {seconds:.0f} s, {len(reference.runs)} cells, {wrong or 'ok'}", flush=True)
        failed = len(wrong)
        for number, fault in enumerate(order[:rounds], start=1):
            result = play(fault, chance.uniform(2, seconds), chance, reference)
            failed += not result.verdict.startswith("ok")
            row = (number, fault, f"{result.moment:.1f} s", result.done, result.attempts, result.verdict)
            print(*row, sep=" | ", flush=True)
            table.add_row(*map(str, row))
    Console().print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
