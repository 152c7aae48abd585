"""What every exhibit is made of, whatever it is written as."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from reports.source.comparisons import Comparison
from reports.source.paper import PaperBlock, PaperValue, millions
from reports.source.results import BaseRate, Key, Point, Results, missing_lines
from reports.stats import Estimate

State = Literal["measured", "missing", "diverged", "failed", "over_context", "no_position"]

DASH = "—"
OVER_CONTEXT = "n/a (over the context)"
NO_POSITION = "n/a (no position)"
_FAMILIES = {"gpt2": "GPT-2", "meta": "Meta", "pause": "Pause", "wide": "Wide"}
_POSITIONS = {"ape": "APE", "rope": "RoPE", "nope": "NoPE", "alibi": "ALiBi"}
_SETTINGS = {
    "full": "full",
    "no_pos": "no pos",
    "no_embed": "no embed",
    "neither": "neither",
}
TASK_NAMES = {
    "list_recall": "list recall",
    "segment_counting": "segment counting",
    "parity": "parity",
    "copying": "copying",
}
MAJORITY = "commonest answer"
TESTS_NOTHING = "tests nothing"
TESTS_NOTHING_NOTE = (
    f"“{TESTS_NOTHING}” says base rate where no model can be told from always giving the {MAJORITY} "
    "(the Wilson intervals overlap, or it is worse), and ceiling where every model has at least 98% right. "
    "No claim rests on these."
)


FLOOR_NOTE = (
    "Over seeds: the standard error of the seeds' differences, but never below what the test examples leave "
    "open, as seeds share them and may agree by chance."
)


@dataclass(frozen=True)
class Entry:
    """A table's cell: the number, and under it what a reader needs to judge it."""

    value: str
    details: tuple[str, ...] = ()
    paper: str = ""
    paper_origin: str = ""
    state: State = "measured"
    paper_scale: str = ""

    @property
    def paper_line(self) -> str:
        """The paper's number with the sizes of the two models."""
        return f"paper {self.paper} ({self.paper_scale})" if self.paper else ""

    def __str__(self) -> str:
        parts = [" ".join([self.value, *self.details[:1]]), *self.details[1:]]
        return "; ".join([*parts, self.paper_line] if self.paper else parts)


@dataclass
class Exhibit:
    """A table or a figure of the paper, or one beyond it, with this ledger's numbers.

    name: file name; one of the paper's ends in its number there. frame: what is shown, str or Entry, the
    first `labels` columns being row labels. spanner: heading over the others. data: the same numbers, tidy,
    at full precision. missing: the cells that are not there. runs: fingerprints behind it. paper: the
    paper's values at other coordinates.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    labels: int
    data: pd.DataFrame
    spanner: str = ""
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    paper: PaperBlock | None = None
    figure: Figure | None = None

    @property
    def number(self) -> str:
        """Table 7, Figure 1; an exhibit beyond the paper has its name as words."""
        found = re.fullmatch(r"(table|figure)_(\d+)", self.name)
        if found is None:
            return self.name.replace("_", " ").capitalize()
        return f"{found[1].capitalize()} {int(found[2])}"

    @property
    def has_paper_beside(self) -> bool:
        """Whether any of its numbers has the paper's beside it."""
        return any(
            isinstance(v, Entry) and v.paper and v.state == "measured" for v in self.frame.to_numpy().ravel()
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all of it was measured."""
        return not self.runs and bool(self.missing)


def model_title(model: str) -> str:
    """meta_rope_yarn_4k -> Meta + RoPE + YaRN 4k."""
    if model == "gpt_neo_125m":
        return "GPT-Neo-125M"
    parts = model.split("_")
    names = [_FAMILIES.get(parts[0], parts[0]), *(_POSITIONS.get(p, p) for p in parts[1:2])]
    return " + ".join(names + ([f"YaRN {parts[3]}"] if len(parts) > 3 else []))


def scale_text(results: Results) -> str:
    """Without which the paper's numbers say nothing about ours."""
    sizes = results.reference.ours
    ours = ", ".join(f"{model_title(model)} {millions(sizes[model])}" for model in model_order(sizes))
    return (
        f"Scale: the paper's models have 124M to 152M parameters; ours, preset {results.selection.preset}: "
        f"{ours or 'not counted yet'}."
    )


def setting_title(setting: str) -> str:
    return _SETTINGS.get(setting, setting.replace("_", " "))


def model_order(models: Iterable[str]) -> list[str]:
    """Baselines first, then controls, then the meta models; short contexts before long ones."""
    families = ("gpt2", "wide", "pause", "meta")

    def rank(model: str) -> tuple[int, int, int, str]:
        parts = model.split("_")
        family = families.index(parts[0]) if parts[0] in families else len(families)
        position = list(_POSITIONS).index(parts[1]) if parts[1] in _POSITIONS else len(_POSITIONS)
        extension = parts[3] if len(parts) > 3 else "0"
        tokens = int(extension.rstrip("k")) * (1024 if extension.endswith("k") else 1)
        return family, position, tokens, model

    return sorted(set(models), key=rank)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    """Points with their sign: +3.5, −2.0, 0.0."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def interval(estimate: Estimate) -> str:
    return f"[{percent(estimate.low)}, {percent(estimate.high)}]"


def seeds_text(seeds: int, by_seed: Estimate) -> str:
    """Number of seeds, and their mean with its t-interval where there are several."""
    if seeds < 2:
        return "1 seed"
    return f"{seeds} seeds: mean {percent(by_seed.value)}, t ± {percent(by_seed.high - by_seed.value)}"


def point_entry(point: Point, paper: PaperValue | None = None) -> Entry:
    details = (interval(point.pooled), f"n={point.n}")
    if point.seeds > 1:
        details = (*details, seeds_text(point.seeds, point.by_seed))
    if point.lost:
        details = (*details, point.lost)
    return with_paper(percent(point.pooled.value), details, paper)


def difference_entry(found: Comparison, paper: PaperValue | None = None) -> Entry:
    """A difference in points with its interval; which seeds it is over."""
    value, low, high = found.difference
    seeds = f"{found.seeds} seed{'s' * (found.seeds > 1)}"
    return with_paper(signed(value), (f"[{signed(low)}, {signed(high)}]", f"n={found.n}", seeds), paper)


def p_text(p: float) -> str:
    return DASH if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def absent_entry(results: Results, key: Key, paper: PaperValue | None = None) -> Entry:
    """A coordinate without a number: over the context, nothing to change, diverged, failed, or missing."""
    if results.over_context(key.model, key.eval_length):
        return Entry(OVER_CONTEXT, state="over_context")
    if not results.has_setting(key.model, key.setting):
        return Entry(NO_POSITION, state="no_position")
    trouble = results.trouble_at(key)
    if trouble:
        return with_paper(trouble, (), paper, state="diverged" if trouble == "diverged" else "failed")
    return with_paper(DASH, (), paper, state="missing")


def with_paper(
    value: str, details: tuple[str, ...], paper: PaperValue | None, state: State = "measured"
) -> Entry:
    if paper is None:
        return Entry(value, details, state=state)
    return Entry(value, details, paper.value, paper.origin, state, paper.scale)


def point_row(key: Key, point: Point | None, entry: Entry, majority: float | None) -> dict[str, object]:
    """The tidy row of a coordinate; numbers are shares, not percent, and empty where there is none."""
    row: dict[str, object] = {**key._asdict(), "state": entry.state}
    if point is not None:
        row |= {"value": point.pooled.value, "low": point.pooled.low, "high": point.pooled.high}
        row |= {"n": point.n, "seeds": point.seeds}
        if point.seeds > 1:
            seeds = point.by_seed
            row |= {"seed_mean": seeds.value, "seed_low": seeds.low, "seed_high": seeds.high}
    row |= {
        "majority_share": majority,
        "paper": entry.paper or None,
        "paper_origin": entry.paper_origin or None,
    }
    return row


POINT_COLUMNS = [
    *Key._fields,
    "state",
    "value",
    "low",
    "high",
    "n",
    "seeds",
    "seed_mean",
    "seed_low",
    "seed_high",
    "majority_share",
    "paper",
    "paper_origin",
]


def point_frame(rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    """Tidy rows as a frame whose counts stay whole numbers."""
    frame = pd.DataFrame(rows, columns=POINT_COLUMNS)
    return frame.astype({"n": "Int64", "seeds": "Int64"})


def majority_text(value: float | None) -> str:
    return DASH if value is None or math.isnan(value) else percent(value)


def base_rate_entry(base: BaseRate | None) -> Entry:
    """The best constant answer's accuracy as a table's cell."""
    if base is None:
        return Entry(DASH, state="missing")
    return Entry(percent(base.share.value), (interval(base.share), f"n={base.n}"))


def left_out_notes(results: Results, kind: str, task: str = "") -> list[str]:
    """A line for runs at the same labels that were not pooled with those shown."""
    rows = results.left_out
    rows = rows[(rows.kind == kind) & ((rows.task == task) | (not task))]
    return [
        f"Not pooled: {len(group)} {kind} run{'s' * (len(group) > 1)} at the same labels, {why}; shown is "
        "the preset's own configuration, or else the newest. "
        f"Left out: {', '.join(f[:12] for f in group.fingerprint)}."
        for why, group in rows.groupby("why", sort=False)
    ]


def missing_notes(results: Results, *wanted: tuple[str, dict[str, str]]) -> list[str]:
    """The preset's cells that are missing, of (kind, labels) each."""
    return [line for kind, labels in wanted for line in missing_lines(results.missing(kind, **labels))]


def reported(results: Results, kinds: Iterable[str], **labels: str) -> list[str]:
    """Fingerprints of the shown runs of these kinds."""
    return [f for kind in kinds for f in results.runs(kind, **labels).fingerprint]
