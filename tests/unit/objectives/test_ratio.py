"""The ratio of two settings and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from optimizer.objectives.ratio import ratio_of_means

FIGURES = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=8).map(np.array)


@given(FIGURES, FIGURES)
def test_it_is_welch_on_the_logarithms(first, second):
    ratio = ratio_of_means(first, second)
    logs = np.log(first), np.log(second)
    assume(min(np.ptp(logs[0]), np.ptp(logs[1])) > 1e-6)  # below that SciPy warns of its own precision
    expected = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert ratio.low is not None
    assert ratio.high is not None
    assert math.log(ratio.low) == pytest.approx(expected.low, abs=1e-6)
    assert math.log(ratio.high) == pytest.approx(expected.high, abs=1e-6)
    assert ratio.low <= ratio.value <= ratio.high


@given(FIGURES, FIGURES, st.floats(0.01, 100.0))
def test_the_unit_does_not_matter(first, second, factor):
    plain, scaled = ratio_of_means(first, second), ratio_of_means(factor * first, factor * second)
    assert scaled.value == pytest.approx(plain.value, rel=1e-9)
    assert scaled.high == pytest.approx(plain.high, rel=1e-6)


@given(FIGURES, FIGURES)
def test_turned_round_it_is_the_reciprocal(first, second):
    there, back = ratio_of_means(first, second), ratio_of_means(second, first)
    assert there.value * back.value == pytest.approx(1.0)
    assert there.low * back.high == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("spread", [(0.03, 0.03), (0.01, 0.08)])
def test_three_runs_each_cover_the_truth_as_often_as_promised(spread):
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(2000):
        first = 1.3 * np.exp(rng.normal(0.0, spread[0], 3))
        second = np.exp(rng.normal(0.0, spread[1], 3))
        ratio = ratio_of_means(first, second)
        covered += ratio.low <= 1.3 <= ratio.high
    # Binomial at 95 %: 1900 +- 3 * 9.7. Welch's degrees of freedom err by a percent with three runs each.
    assert 0.925 < covered / 2000 < 0.975


def test_runs_without_spread_give_a_point():
    ratio = ratio_of_means(np.array([3.0, 3.0]), np.array([2.0, 2.0]))
    assert ratio.low == ratio.high == ratio.value == pytest.approx(1.5)


def test_one_run_bounds_nothing():
    ratio = ratio_of_means(np.array([3.0]), np.array([2.0, 2.1]))
    assert (ratio.low, ratio.high) == (None, None)


@pytest.mark.parametrize("wrong", [[], [0.0, 1.0], [-1.0, 1.0], [math.inf, 1.0]])
def test_figures_that_have_no_logarithm_are_a_fault(wrong):
    with pytest.raises(ValueError, match="a ratio needs"):
        ratio_of_means(np.array(wrong), np.array([1.0, 2.0]))
