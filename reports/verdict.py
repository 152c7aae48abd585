"""The rule by which a claim stands or falls: one for all claims, written down once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from reports.stats import ALPHA, MARGIN, Sample, holm

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not tested"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "not reproduced", "inconclusive", "not tested")


class Bar(NamedTuple):
    """What a claim's number must lie above, and how far above it counts as clearly there."""

    bar: float
    margin: float
    text: str


BETTER = Bar(0.0, MARGIN, f"above 0; equivalence margin {100 * MARGIN:.0f} points")
NOT_WORSE = Bar(-MARGIN, MARGIN, f"above −{100 * MARGIN:.0f} points, the equivalence margin")
POSITIVE = Bar(0.0, 0.0, "above 0; no margin")

RULE = (
    "A claim is a number that it says lies above a bar: 0 for “better”, minus the equivalence margin of "
    f"{100 * MARGIN:.0f} points for “as good”, 0 without a margin for the sign of a mean and for curves. "
    "Seeds are the unit: the number is taken within each seed, its interval over seeds is Student's t, "
    "and its standard error is never below what the test examples alone leave open (not so for claims 7 and "
    "10, whose runs keep no example's number).",
    "Reproduced: the interval, at 95% after Holm's correction over this page's claims, lies above the bar.",
    "Not reproduced: it is not, and the interval, corrected alike, lies below the bar plus the margin.",
    "Inconclusive: neither. Not tested: fewer than 2 seeds (timings: repeats), or the cells are not there, "
    "or the task tests nothing.",
    "A claim about every task, model or rate is as good as its weakest part: reproduced if each part is and "
    "none is untested, not reproduced if some part is not, after Bonferroni's correction over the parts.",
)


class Part(NamedTuple):
    """One number of a claim. n: examples behind it. text: as the page shows it."""

    name: str
    sample: Sample
    n: int
    text: str


@dataclass(frozen=True)
class Evidence:
    """What a claim rests on. parts: each must lie above the bar. gaps: parts that could not be tested.
    units: what is independent."""

    bar: Bar
    parts: tuple[Part, ...] = ()
    gaps: tuple[str, ...] = ()
    units: str = "seeds"

    @property
    def tested(self) -> tuple[Part, ...]:
        """The parts of at least two units."""
        return tuple(part for part in self.parts if part.sample.df > 0)

    @property
    def weakest(self) -> Part | None:
        """The part that decides."""
        bar = self.bar.bar
        return max(self.tested, key=lambda part: (part.sample.p_above(bar), -part.sample.mean), default=None)

    @property
    def p_holds(self) -> float:
        """Of some part's number at or below the bar; NaN if nothing was tested."""
        return max((part.sample.p_above(self.bar.bar) for part in self.tested), default=math.nan)

    @property
    def p_fails(self) -> float:
        """Of every part's number at or above the bar plus the margin; NaN if nothing was tested."""
        beyond = self.bar.bar + self.bar.margin
        smallest = min((part.sample.p_below(beyond) for part in self.tested), default=math.nan)
        return min(1.0, len(self.tested) * smallest) if self.tested else math.nan


class Decision(NamedTuple):
    """A verdict, with the one-sided p-values after Holm's correction that it follows from."""

    verdict: Verdict
    p_holds: float
    p_fails: float


def decide(page: Sequence[Evidence]) -> list[Decision]:
    """The verdicts of a page of claims, by RULE."""
    holds, fails = holm([e.p_holds for e in page]), holm([e.p_fails for e in page])
    return [
        Decision(_verdict(evidence, *p_values), *p_values)
        for evidence, *p_values in zip(page, holds, fails, strict=True)
    ]


def _verdict(evidence: Evidence, p_holds: float, p_fails: float) -> Verdict:
    level = ALPHA / 2  # one side of a 95% interval
    if not evidence.tested:
        return "not tested"
    if p_holds < level:
        return "inconclusive" if evidence.gaps else "reproduced"
    return "not reproduced" if p_fails < level else "inconclusive"
