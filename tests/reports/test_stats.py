"""Intervals and tests against statsmodels, published numbers and hand calculation."""

import math

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from reports.stats import clustered_mean, clustered_share, mean_of_seeds, newcombe, paired, wilson


def test_wilson_is_the_textbook_formula():
    n, p, z = 20, 0.3, 1.959963984540054
    centre, spread = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    estimate = wilson(6, n)
    assert estimate.value == p
    assert estimate.low == pytest.approx((centre - spread) / (1 + z**2 / n))
    assert estimate.high == pytest.approx((centre + spread) / (1 + z**2 / n))


def test_newcombe_gives_the_published_interval():
    # Newcombe 1998, Statistics in Medicine 17, 2635-2650, table III, method 10: 36, 12, 2, 0.
    assert newcombe(36, 12, 2, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)


def test_paired_counts_and_mcnemar():
    first = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], bool)
    second = np.array([1, 1, 0, 1, 1, 1, 1, 1, 0, 0], bool)
    test = paired(first, second)
    assert (test.n, test.gained, test.lost) == (10, 5, 1)
    assert test.gain == pytest.approx(0.4)
    # Exact: 2 * P(at most 1 of 6 fair coins).
    assert test.p == pytest.approx(2 * (1 + 6) / 64)
    assert test.low < test.gain < test.high


def test_paired_without_a_difference():
    test = paired(np.zeros(20, bool), np.zeros(20, bool))
    assert (test.gain, test.p) == (0, 1)
    assert test.low == pytest.approx(-test.high)


def test_mean_of_seeds_is_the_t_interval():
    estimate = mean_of_seeds([0.2, 0.4, 0.6])
    half = 4.302652729911275 * 0.2 / math.sqrt(3)
    assert estimate == pytest.approx((0.4, 0.4 - half, 0.4 + half))
    assert math.isnan(mean_of_seeds([0.5]).low)


def test_a_share_of_clusters_of_one_is_about_wilson():
    right = np.array([1, 0] * 200)
    estimate = clustered_share(right, np.ones(400))
    assert estimate == pytest.approx((0.5, *proportion_confint(200, 400, method="wilson")), abs=1e-3)


def test_tokens_that_fall_together_count_as_one():
    # Every example's 10 tokens are all right or all wrong: 40 examples, not 400 tokens.
    right, counts = np.array([10, 0] * 20), np.full(40, 10)
    estimate = clustered_share(right, counts)
    assert estimate == pytest.approx((0.5, *proportion_confint(20, 40, method="wilson")), abs=5e-3)
    all_wrong = clustered_share(np.zeros(40), counts)
    assert all_wrong == pytest.approx((0, *proportion_confint(0, 40, method="wilson")))


def test_a_mean_takes_clusters_as_independent():
    estimate = clustered_mean([1, 1, 3, 3], ["a", "a", "b", "b"])
    assert estimate.value == 2
    assert estimate.high - 2 == pytest.approx(12.706204736432095 * 1.0)
