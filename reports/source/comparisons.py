"""Two models, or one model in two settings, on the same test examples: the seed is the unit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metatok.experiment.design.preset import PUBLISHED
from reports.source.results import Key, Results
from reports.stats import (
    Estimate,
    Paired,
    Sample,
    bootstrap_seeds_and_examples,
    cohens_h,
    over_seeds,
    paired,
    paired_error,
)


class Contrast(NamedTuple):
    """A question that a model and its control answer together; both are families, as in meta_rope."""

    question: str
    treated: str
    control: str


CONTRASTS = (
    Contrast("meta-attention", "meta", "pause"),
    Contrast("injected tokens", "pause", "gpt2"),
    Contrast("extra parameters", "wide", "gpt2"),
    Contrast("all together", "meta", "gpt2"),
)
POSITIONS = ("ape", "rope")


class Pair(NamedTuple):
    """One seed: right or wrong, (n,), under the control and the treatment, example by example."""

    seed: str
    control: NDArray[np.bool_]
    treated: NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """`treated` minus `control` at one task, train length and eval length; at least one seed has both."""

    treated: Key
    control: Key
    pairs: tuple[Pair, ...]

    @property
    def seeds(self) -> int:
        return len(self.pairs)

    @property
    def n(self) -> int:
        """Test examples, all seeds together."""
        return sum(len(pair.control) for pair in self.pairs)

    @cached_property
    def by_seed(self) -> dict[str, tuple[float, float]]:
        """seed -> difference of the accuracies, and its standard error over that seed's examples."""
        return {
            pair.seed: (test.gain, paired_error(test.gained, test.lost, test.n))
            for pair, test in zip(self.pairs, self.tests, strict=True)
        }

    @cached_property
    def tests(self) -> list[Paired]:
        """Each seed's exact McNemar test."""
        return [paired(pair.control, pair.treated) for pair in self.pairs]

    @cached_property
    def sample(self) -> Sample:
        """The differences of the seeds."""
        return over_seeds(*zip(*self.by_seed.values(), strict=True))

    @property
    def difference(self) -> Estimate:
        """Over seeds with its t-interval; of one seed with Newcombe's, which is about that model alone."""
        if self.seeds > 1:
            return self.sample.estimate
        test = self.tests[0]
        return Estimate(test.gain, test.low, test.high)

    @property
    def p(self) -> float:
        """Of no difference: the paired t-test over seeds; of one seed the exact McNemar test."""
        return self.sample.p if self.seeds > 1 else self.tests[0].p

    @property
    def effect(self) -> Estimate:
        """Cohen's h, mean over seeds with its t-interval."""
        sizes = [cohens_h(float(pair.treated.mean()), float(pair.control.mean())) for pair in self.pairs]
        return over_seeds(sizes).estimate

    @property
    def bootstrap(self) -> Estimate:
        """The difference, its interval a bootstrap over seeds and examples; NaN where seeds differ in n."""
        if len({len(pair.control) for pair in self.pairs}) > 1:
            return Estimate(self.sample.mean, math.nan, math.nan)
        return bootstrap_seeds_and_examples([pair.treated.astype(int) - pair.control for pair in self.pairs])


def compare(results: Results, treated: Key, control: Key) -> Comparison | None:
    """The seeds that both have, each on its own test examples; None if there are none.

    A seed whose two test sets are not the same examples is left out.
    """
    first, second = (results.records_at(key) for key in (control, treated))
    pairs = []
    for seed in sorted(first.keys() & second.keys(), key=int):
        before = results.examples(first[seed], control.eval_length)
        after = results.examples(second[seed], treated.eval_length)
        if before is None or after is None or not before.index.equals(after.index) or before.empty:
            continue
        if (before.prompt_tokens.to_numpy() != after.prompt_tokens.to_numpy()).any():
            continue
        pairs.append(Pair(seed, before.exact.to_numpy(bool), after.exact.to_numpy(bool)))
    return Comparison(treated, control, tuple(pairs)) if pairs else None


def ablation(results: Results, key: Key) -> Comparison | None:
    """A setting against the full model of the same weights."""
    return compare(results, key, key._replace(setting="full"))


@dataclass(frozen=True)
class ControlCell:
    """A question at one position, task, train length and eval length.

    comparison: None where one of the two has no score there, for which `absent` has the reason. nothing:
    "base rate" or "ceiling" where both stand there, so that their difference says nothing.
    """

    contrast: Contrast
    position: str
    treated: Key
    control: Key
    comparison: Comparison | None
    nothing: str
    absent: str

    @property
    def tested(self) -> Comparison | None:
        """The comparison, if it is one of several seeds that can say something."""
        found = self.comparison
        return found if found is not None and found.seeds > 1 and not self.nothing else None


def control_cells(
    results: Results, tasks: Collection[str], contrasts: Sequence[Contrast] = CONTRASTS
) -> list[ControlCell]:
    """All cells of these tasks of which the ledger has both models, in the order of the contrasts."""
    tuned = [key for key in results.exact if key.setting == "full" and key.task in tasks]
    return [
        _control_cell(results, contrast, position, *(Key(name, *place) for name in names))
        for contrast in contrasts
        for position in POSITIONS
        for names in [(f"{contrast.treated}_{position}", control_name(contrast, position))]
        if {*names} <= {key.model for key in tuned}
        for place in sorted({key[1:4] for key in tuned if key.model in names})
    ]


def _control_cell(
    results: Results, contrast: Contrast, position: str, treated: Key, control: Key
) -> ControlCell:
    troubles = filter(None, map(results.trouble_at, (treated, control)))
    return ControlCell(
        contrast,
        position,
        treated,
        control,
        compare(results, treated, control),
        results.tests_nothing((treated, control)),
        next(troubles, "no seed has both"),
    )


def control_name(contrast: Contrast, position: str) -> str:
    """The control's model; a published one has the position that it has."""
    return contrast.control if contrast.control in PUBLISHED else f"{contrast.control}_{position}"


def mean_difference(comparisons: Sequence[Comparison]) -> Sample | None:
    """The mean over cells of each seed's differences, over the seeds that have every cell; None of none."""
    seeds = sorted(set.intersection(*(set(c.by_seed) for c in comparisons))) if comparisons else []
    if not seeds:
        return None
    values, errors = [], []
    for seed in seeds:
        found = [c.by_seed[seed] for c in comparisons]
        # Cells of one task and eval length have the same examples, so their errors add up.
        same_examples: dict[tuple[str, int], float] = {}
        for cell, (_, error) in zip(comparisons, found, strict=True):
            place = (cell.treated.task, cell.treated.eval_length)
            same_examples[place] = same_examples.get(place, 0.0) + error
        values.append(float(np.mean([difference for difference, _ in found])))
        errors.append(math.hypot(*same_examples.values()) / len(found))
    return over_seeds(values, errors)
