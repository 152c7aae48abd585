"""Intervals and tests against statsmodels, published numbers and hand calculation."""

import math

import numpy as np
import pytest
from scipy.stats import sem, ttest_1samp
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from reports.stats import (
    bootstrap_seeds_and_examples,
    clustered_mean,
    clustered_share,
    cohens_h,
    holm,
    mean_of_seeds,
    newcombe,
    over_seeds,
    paired,
    paired_error,
    wilson,
)


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


def test_holm_is_the_step_down_by_hand():
    assert holm([0.04, 0.01, math.nan, 0.03]) == pytest.approx([0.06, 0.03, math.nan, 0.06], nan_ok=True)
    assert holm([]) == []
    p_values = np.random.default_rng(0).random(9) ** 3
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert math.isnan(holm([math.nan])[0])


def test_a_sample_of_seeds_is_scipys_t_test():
    values = [0.2, 0.5, 0.35, 0.1]
    sample, test = over_seeds(values), ttest_1samp(values, 0)
    assert sample.p == pytest.approx(test.pvalue)
    assert sample.estimate[1:] == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert sample.p_above(0.1) == pytest.approx(ttest_1samp(values, 0.1, alternative="greater").pvalue)
    assert sample.p_below(0.5) == pytest.approx(ttest_1samp(values, 0.5, alternative="less").pvalue)
    assert math.isnan(over_seeds([0.5]).p)


def test_the_examples_are_a_floor_of_the_seeds_error():
    assert over_seeds([0.1, 0.1, 0.1], [0.03, 0.03, 0.03]).error == pytest.approx(0.03 / math.sqrt(3))
    assert over_seeds([0.0, 0.5, 1.0], [0.03, 0.03, 0.03]).error == pytest.approx(0.5 / math.sqrt(3))


def test_a_paired_error_is_about_that_of_the_differences():
    rng = np.random.default_rng(0)
    differences = rng.choice([-1, 0, 1], p=[0.1, 0.6, 0.3], size=4000)
    gained, lost = int((differences == 1).sum()), int((differences == -1).sum())
    assert paired_error(gained, lost, 4000) == pytest.approx(sem(differences), rel=2e-3)
    assert paired_error(0, 0, 100) > 0


def test_cohens_h_of_a_half_and_three_quarters():
    assert cohens_h(0.75, 0.5) == pytest.approx(math.pi / 6)
    assert cohens_h(0.0, 1.0) == pytest.approx(-math.pi)


def test_the_bootstrap_of_seeds_and_examples_is_one_by_brute_force():
    rng = np.random.default_rng(1)
    differences = rng.choice([-1, 0, 1], p=[0.1, 0.4, 0.5], size=(5, 60))
    found = bootstrap_seeds_and_examples(differences)
    means = [
        differences[np.ix_(rng.integers(5, size=5), rng.integers(60, size=60))].mean() for _ in range(4000)
    ]
    assert found.value == pytest.approx(differences.mean())
    assert found[1:] == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.015)
    assert found == bootstrap_seeds_and_examples(differences)
