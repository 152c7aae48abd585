"""How a sweep stands, counted, timed and drawn alike for who runs it and who looks on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from metatok.experiment.design import Cell, stages

# A guess of the time left needs this share of the work done, or this much of it watched.
ENOUGH_SHARE = 0.05
ENOUGH_SECONDS = 300.0


@dataclass(frozen=True)
class Turn:
    """A cell's time on the machine: start and end in seconds of one clock, end None while it runs."""

    start: float
    end: float | None = None
    step: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Standing:
    """A sweep's cells at one moment.

    finished, failed: fingerprints; what builds on a failed cell may count as failed. turns: fingerprint ->
    turn, of cells that run or ran under watch. since, now: on the clock of the turns.
    """

    title: str
    cells: Sequence[Cell]
    finished: Collection[str]
    failed: Collection[str]
    turns: Mapping[str, Turn]
    since: float
    now: float

    @property
    def running(self) -> list[tuple[Cell, Turn]]:
        """The cells at work, in the plan's order."""
        turns = ((cell, self.turns.get(cell.fingerprint)) for cell in self.cells)
        return [(cell, turn) for cell, turn in turns if turn is not None and turn.end is None]

    @property
    def settled(self) -> bool:
        """Whether nothing runs and nothing is to do."""
        return not self.running and len({*self.finished, *self.failed}) == len(self.cells)

    def counts(self) -> dict[str, Counter[str]]:
        """stage -> cells, finished, failed, running; in the order of the stages."""
        found: dict[str, Counter[str]] = {}
        running = {cell.fingerprint for cell, _ in self.running}
        for cell in self.cells:
            counter = found.setdefault(cell.stage, Counter())
            counter["cells"] += 1
            counter["finished"] += cell.fingerprint in self.finished
            counter["failed"] += cell.fingerprint in self.failed
            counter["running"] += cell.fingerprint in running
        return {stage: found[stage] for stage in stages() if stage in found}

    def seconds_left(self) -> float | None:
        """From the FLOPs left and the time that those of each kind took; None where too few are done.

        A kind not watched yet is taken to run like the others. Measurements of speed, which run alone, are no
        measure of it.
        """
        charged = machine_seconds(self.turns, self.now)
        seconds, done, left = (defaultdict[str, float](float) for _ in range(3))
        for cell in self.cells:
            flops, turn = cell.cost().flops, self.turns.get(cell.fingerprint)
            finished = cell.fingerprint in self.finished
            share = 1.0 if finished else _progress(cell, turn)
            if turn is not None and share:
                seconds[cell.kind] += charged[cell.fingerprint]
                done[cell.kind] += share * flops
            if not finished and cell.fingerprint not in self.failed:
                left[cell.kind] += (1 - share) * flops
        if not left:
            return 0.0
        measured = {cell.kind for cell in self.cells if cell.alone}
        watched = [kind for kind in done if kind not in measured]
        took, of = sum(seconds[kind] for kind in watched), sum(done[kind] for kind in watched)
        enough = of >= ENOUGH_SHARE * (of + sum(left.values())) or took >= ENOUGH_SECONDS
        if not of or not enough:
            return None
        rates = {kind: seconds[kind] / done[kind] if done[kind] else took / of for kind in left}
        return sum(flops * rates[kind] for kind, flops in left.items())

    def line(self) -> str:
        """All of it on one line, for a log."""
        stages = ", ".join(_stage_text(stage, count) for stage, count in self.counts().items())
        running = "; ".join(describe(cell, turn) for cell, turn in self.running)
        return f"[{clock(self.now - self.since)}] {stages}; ETA {self._eta()}" + (
            f" | {running}" if running else ""
        )

    def table(self) -> Group:
        """For a terminal."""
        table = Table(title=f"Sweep {self.title}", title_justify="left")
        for name in ("stage", "done", "running", "failed", "to do"):
            table.add_column(name, justify="left" if name == "stage" else "right")
        for stage, n in self.counts().items():
            todo = n["cells"] - n["finished"] - n["failed"] - n["running"]
            rest = (str(count or "") for count in (n["running"], n["failed"], todo))
            table.add_row(stage, f"{n['finished']}/{n['cells']}", *rest)
        running = [Text(describe(cell, turn)) for cell, turn in self.running]
        elapsed = f"elapsed {clock(self.now - self.since)}, ETA {self._eta()}"
        return Group(table, *running, Text(elapsed))

    def _eta(self) -> str:
        left = self.seconds_left()
        return "?" if left is None else clock(left)


def machine_seconds(turns: Mapping[str, Turn], now: float) -> dict[str, float]:
    """Each turn's share of the wall clock: every moment is split evenly among those at work in it."""
    edges = [(turn.start, 0, key) for key, turn in turns.items()]
    edges += [(now if turn.end is None else turn.end, 1, key) for key, turn in turns.items()]
    shares = dict.fromkeys(turns, 0.0)
    at_work: set[str] = set()
    before = 0.0
    for moment, ends, key in sorted(edges):
        for worker in at_work:
            shares[worker] += (moment - before) / len(at_work)
        before = moment
        if ends:
            at_work.discard(key)
        else:
            at_work.add(key)
    return shares


def _progress(cell: Cell, turn: Turn | None) -> float:
    """Share of an unfinished cell's steps that are done."""
    steps = getattr(cell, "steps", None)
    return min(turn.step / steps, 1.0) if turn is not None and steps else 0.0


def describe(cell: Cell, turn: Turn) -> str:
    """A running cell: step, loss, speed, where it has them."""
    text = f"{cell.kind} {cell.slug}"
    if steps := getattr(cell, "steps", None):
        text += f" step {turn.step}/{steps}"
    if turn.loss is not None:
        text += f" loss {turn.loss:.3f}"
    if turn.tokens_per_second is not None:
        text += f" {si(turn.tokens_per_second)} tok/s"
    return text


def _stage_text(stage: str, count: Counter[str]) -> str:
    failed = f" ({count['failed']} failed)" if count["failed"] else ""
    return f"{stage} {count['finished']}/{count['cells']}{failed}"


def si(value: float) -> str:
    """Three digits and a unit: 1.23M."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or unit == "T":
            break
        value /= 1000
    return f"{value:.3g}{unit}"


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"
