"""Intervals and paired tests, all at 95%."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint, proportion_effectsize

from metatok.randomness import generator

ALPHA = 0.05
MARGIN = 0.02  # of accuracy: a smaller difference is none
RESAMPLES = 1000


class Estimate(NamedTuple):
    """A number with its interval; low and high are NaN where one observation gives none."""

    value: float
    low: float
    high: float


class Paired(NamedTuple):
    """A second accuracy minus a first one on the same n examples.

    gain, low, high: the difference and Newcombe's interval. gained: examples right under the second alone.
    lost: under the first alone. p: exact McNemar test.
    """

    n: int
    gained: int
    lost: int
    gain: float
    low: float
    high: float
    p: float


class Sample(NamedTuple):
    """A mean over independent units (seeds), its standard error and degrees of freedom: 0 of one unit."""

    mean: float
    error: float
    df: int

    @property
    def estimate(self) -> Estimate:
        """The mean with its t-interval."""
        return _with_t(self.mean, self.error, self.df + 1)

    def p_above(self, bar: float) -> float:
        """One-sided p of a mean at or below `bar`; NaN from one unit."""
        if self.df < 1:
            return math.nan
        if self.error == 0:
            return 0.0 if self.mean > bar else 1.0
        return float(student.sf((self.mean - bar) / self.error, self.df))

    def p_below(self, bar: float) -> float:
        """One-sided p of a mean at or above `bar`; NaN from one unit."""
        return Sample(-self.mean, self.error, self.df).p_above(-bar)

    @property
    def p(self) -> float:
        """Two-sided p of a mean of 0."""
        return min(1.0, 2 * min(self.p_above(0.0), self.p_below(0.0))) if self.df else math.nan


def over_seeds(values: ArrayLike, errors: ArrayLike | None = None) -> Sample:
    """Seeds as the sample. errors: each seed's own standard error from its examples.

    The error is never below what the examples alone leave open: seeds share one test set, so that two that
    agree by chance would otherwise leave no doubt at all.
    """
    x = np.asarray(values, float)
    error = float(x.std(ddof=1)) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    if errors is not None:
        error = max(error, float(np.linalg.norm(np.asarray(errors, float))) / len(x))
    return Sample(float(x.mean()), error, len(x) - 1)


def wilson(correct: float, n: float) -> Estimate:
    """A share with its Wilson interval."""
    low, high = proportion_confint(correct, n, alpha=ALPHA, method="wilson")
    return Estimate(correct / n, float(low), float(high))


def clustered_share(correct: ArrayLike, counts: ArrayLike) -> Estimate:
    """sum(correct) / sum(counts) over clusters, such as the answer tokens of an example.

    Wilson's interval at the effective sample size p(1 - p) / var, where var allows for what observations of
    one cluster have in common. Where var says nothing (all right, all wrong) a cluster counts as one.
    """
    right, total = np.asarray(correct, float), np.asarray(counts, float)
    share, error = _ratio(right, total)
    clusters, n = len(total), float(total.sum())
    effective = share * (1 - share) / error**2 if error > 0 else clusters
    effective = min(effective, n)
    return wilson(share * effective, effective)


def clustered_mean(values: ArrayLike, clusters: Sequence[object]) -> Estimate:
    """The mean of all values with a t-interval that takes clusters, not values, as independent."""
    _, index = np.unique([str(c) for c in clusters], return_inverse=True)
    counts = np.bincount(index).astype(float)
    mean, error = _ratio(np.bincount(index, weights=np.asarray(values, float)), counts)
    return _with_t(mean, error, len(counts))


def mean_of_seeds(values: ArrayLike) -> Estimate:
    """The mean over seeds with its t-interval."""
    return over_seeds(values).estimate


def paired(first: ArrayLike, second: ArrayLike) -> Paired:
    """`second` against `first`, right or wrong on the same examples in the same order."""
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    both, lost, gained = int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum())
    neither = len(a) - both - lost - gained
    low, high = newcombe(both, gained, lost, neither)
    p = float(mcnemar([[both, lost], [gained, neither]], exact=True).pvalue)
    return Paired(len(a), gained, lost, (gained - lost) / len(a), low, high, p)


def paired_error(gained: int, lost: int, n: int) -> float:
    """Standard error of a paired difference of proportions; above 0 even where the two never differ.

    Bonett and Price, Journal of Educational and Behavioral Statistics 37 (2012): a count added to each kind
    of discordant pair.
    """
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    return math.sqrt((up + down - (up - down) ** 2) / (n + 2))


def cohens_h(second: float, first: float) -> float:
    """Cohen's effect size of two shares: 2 asin sqrt(second) - 2 asin sqrt(first), from -pi to pi."""
    return float(proportion_effectsize(second, first))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of one family; a NaN was not tested, stays NaN and counts for nothing.

    By hand, as statsmodels' multipletests collects the process's garbage at every call: 0.2 s in a report.
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]  # NaN sorts last
    adjusted = np.full(len(p), math.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted.tolist()


def bootstrap_seeds_and_examples(differences: ArrayLike) -> Estimate:
    """The mean of a (seeds, examples) array of -1, 0 and 1, both resampled: a percentile interval.

    Seeds share their examples, so an example is drawn for all seeds at once. It is too narrow at few seeds,
    for which the t-interval over seeds stands.
    """
    d = np.asarray(differences, np.float32)
    seeds, examples = _draws("seeds", d.shape[0]), _draws("examples", d.shape[1])
    means = ((examples @ d.T) * seeds).sum(axis=1)
    low, high = np.quantile(means, [ALPHA / 2, 1 - ALPHA / 2])
    return Estimate(float(np.mean(d, dtype=float)), float(low), float(high))


@lru_cache(maxsize=4)
def _draws(of: str, n: int) -> np.ndarray:
    """(RESAMPLES, n): how often each of n is drawn, as a share; the same for all that have n."""
    counts = generator(0, f"bootstrap/{of}").multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return (counts / n).astype(np.float32)


def newcombe(both: int, second_only: int, first_only: int, neither: int) -> tuple[float, float]:
    """Newcombe's score interval for a paired difference of proportions, second minus first.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998): two Wilson intervals, joined by the correlation
    of the pairs.
    """
    n = both + second_only + first_only + neither
    second, first = wilson(both + second_only, n), wilson(both + first_only, n)
    difference = second.value - first.value
    phi = _correlation(both, second_only, first_only, neither)

    def distance(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    below = distance(second.value - second.low, first.high - first.value)
    above = distance(second.high - second.value, first.value - first.low)
    return difference - below, difference + above


def _correlation(both: int, second_only: int, first_only: int, neither: int) -> float:
    """phi, with the continuity correction of method 10."""
    product = (both + second_only) * (first_only + neither) * (both + first_only) * (second_only + neither)
    if product == 0:
        return 0.0
    excess = both * neither - second_only * first_only
    if excess > 0:
        excess = max(excess - (both + second_only + first_only + neither) / 2, 0)
    return excess / math.sqrt(product)


def _ratio(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """A ratio of sums over clusters and its linearised standard error; NaN from a single cluster."""
    k, ratio = len(counts), float(totals.sum() / counts.sum())
    if k < 2:
        return ratio, math.nan
    variance = k / (k - 1) * float(((totals - ratio * counts) ** 2).sum()) / float(counts.sum()) ** 2
    return ratio, math.sqrt(variance)


def _with_t(mean: float, error: float, n: int) -> Estimate:
    if n < 2:
        return Estimate(mean, math.nan, math.nan)
    half = float(student.ppf(1 - ALPHA / 2, n - 1)) * error
    return Estimate(mean, mean - half, mean + half)
