"""The rule of the claims page, on made-up numbers for each verdict."""

import math

import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from reports.stats import over_seeds
from reports.verdict import BETTER, NOT_WORSE, POSITIVE, Bar, Evidence, Part, decide


def part(*values: float, name: str = "a part", errors: list[float] | None = None) -> Part:
    return Part(name, over_seeds(values, errors), 100 * len(values), "")


def verdicts(*page: Evidence) -> list[str]:
    return [decision.verdict for decision in decide(page)]


def evidence(bar: Bar, *values: float) -> Evidence:
    return Evidence(bar, (part(*values),))


@pytest.mark.parametrize(
    ("bar", "values", "verdict"),
    [
        # Better, by a margin of 2 points.
        (BETTER, (0.40, 0.45, 0.43), "reproduced"),
        (BETTER, (0.001, -0.002, 0.0005), "not reproduced"),
        (BETTER, (-0.40, -0.45, -0.43), "not reproduced"),
        (BETTER, (0.9, 0.01, 0.02), "inconclusive"),
        (BETTER, (0.03, -0.02, 0.02), "inconclusive"),
        (BETTER, (0.9,), "not tested"),
        # As good: a loss below the margin is none.
        (NOT_WORSE, (0.001, -0.002, 0.0005), "reproduced"),
        (NOT_WORSE, (0.40, 0.45, 0.43), "reproduced"),
        (NOT_WORSE, (-0.40, -0.45, -0.43), "not reproduced"),
        (NOT_WORSE, (-0.03, 0.02, -0.02), "inconclusive"),
        # The sign of a mean has no margin.
        (POSITIVE, (0.4, 0.5, 0.45), "reproduced"),
        (POSITIVE, (-0.4, -0.5, -0.45), "not reproduced"),
        (POSITIVE, (0.4, -0.5, 0.1), "inconclusive"),
    ],
)
def test_a_claim_alone(bar: Bar, values: tuple[float, ...], verdict: str):
    assert verdicts(evidence(bar, *values)) == [verdict]


def test_the_level_is_that_of_the_95_percent_interval():
    # Of one claim alone, reproduced is an interval above the bar, to the digit.
    for shift in (0.0, 0.01, 0.02, 0.03):
        values = [0.02 + shift, 0.03 + shift, 0.10 + shift]
        low, _ = ttest_1samp(values, 0).confidence_interval(0.95)
        assert (verdicts(evidence(POSITIVE, *values)) == ["reproduced"]) == (low > 0)


def test_holm_over_the_page():
    # Alone it is reproduced at p = 0.02 one-sided; a page of three such claims asks for 0.025 / 3.
    error = 1 / student.isf(0.02, 2)
    almost = [1 - error * math.sqrt(3), 1.0, 1 + error * math.sqrt(3)]
    assert verdicts(evidence(POSITIVE, *almost)) == ["reproduced"]
    assert verdicts(*[evidence(POSITIVE, *almost)] * 3) == ["inconclusive"] * 3
    # What was not tested takes nothing from the others.
    assert verdicts(evidence(POSITIVE, *almost), evidence(POSITIVE, 1.0), Evidence(BETTER)) == [
        "reproduced",
        "not tested",
        "not tested",
    ]


def test_a_claim_about_every_part_is_as_good_as_the_weakest():
    clear, none, unsure = part(0.40, 0.45, 0.43), part(0.0, 0.001, -0.001), part(0.9, 0.01, 0.02)
    assert verdicts(Evidence(BETTER, (clear, clear))) == ["reproduced"]
    assert verdicts(Evidence(BETTER, (clear, none))) == ["not reproduced"]
    assert verdicts(Evidence(BETTER, (clear, unsure))) == ["inconclusive"]
    assert Evidence(BETTER, (clear, none)).weakest == none
    # A part that was not tested may be the weakest.
    assert verdicts(Evidence(BETTER, (clear,), gaps=("copying",))) == ["inconclusive"]
    assert verdicts(Evidence(BETTER, (none,), gaps=("copying",))) == ["not reproduced"]
    assert verdicts(Evidence(BETTER, (clear, part(0.4)))) == ["reproduced"], "a part of one seed is no part"


def test_one_failing_part_of_many_is_corrected_for_the_search():
    # p = 0.02 below the bar is enough of one part, and not of the worst of four.
    error = 1 / student.isf(0.02, 2)
    bad = part(-1 - error * math.sqrt(3), -1.0, -1 + error * math.sqrt(3))
    good = part(0.40, 0.45, 0.43)
    assert verdicts(Evidence(POSITIVE, (bad,))) == ["not reproduced"]
    assert verdicts(Evidence(POSITIVE, (bad, good, good, good))) == ["inconclusive"]


def test_seeds_that_agree_by_chance_leave_the_examples_doubt():
    # Two seeds of one test set that differ by exactly the same three of a hundred examples.
    assert verdicts(evidence(BETTER, 0.03, 0.03)) == ["reproduced"]
    assert verdicts(Evidence(BETTER, (part(0.03, 0.03, errors=[0.017, 0.017]),))) == ["inconclusive"]
