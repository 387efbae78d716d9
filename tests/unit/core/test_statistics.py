"""The interval for a percentile against known ranks, and how often it holds the true one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from optimizer.core.statistics import (
    Interval,
    binomial_quantile,
    percentile,
    percentile_interval,
    share_interval,
    student_quantile,
)


def ranks(n: int, percent: float, level: float = 0.95) -> tuple[float | None, float | None]:
    """The ranks of the interval's ends: of the values 1 to n, each is its own rank."""
    interval = percentile_interval(np.arange(1, n + 1).astype(np.float64), percent, level=level)
    return interval.low, interval.high


@pytest.mark.parametrize(
    ("n", "percent", "low", "high"),
    [
        (10, 50.0, 2, 9),  # the textbook interval for a median of ten
        (20, 50.0, 6, 15),
        (100, 99.0, 97, None),
        (1000, 99.0, 983, 997),
        (3, 99.0, 2, None),
        (3, 1.0, None, 2),
        (1, 50.0, None, None),
    ],
)
def test_known_ranks(n, percent, low, high):
    assert ranks(n, percent) == (low, high)


def at_most(k: int, n: int, percent: float) -> float:
    """The probability that at most k of n values lie below the percentile."""
    p = percent / 100.0
    return sum(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for i in range(k + 1))


@pytest.mark.parametrize(("n", "percent"), [(50, 50.0), (150, 90.0), (400, 99.0), (900, 99.0)])
def test_the_ends_are_the_closest_that_miss_by_at_most_a_fortieth_each(n, percent):
    low, high = (int(rank) for rank in ranks(n, percent) if rank is not None)
    assert at_most(low - 1, n, percent) <= 0.025 < at_most(low, n, percent)
    assert 1.0 - at_most(high - 1, n, percent) <= 0.025 < 1.0 - at_most(high - 2, n, percent)


def test_a_p99_has_an_upper_end_from_368_values_on():
    """It takes one value above the P99 with 97.5 % probability: 1 - 0.99^n >= 0.975."""
    assert ranks(367, 99.0)[1] is None
    assert ranks(368, 99.0)[1] == 368


def test_no_values_bound_nothing():
    assert percentile_interval(np.array([]), 99.0) == Interval(None, None)
    assert percentile(np.array([]), 99.0) is None


def test_the_order_of_the_values_does_not_matter():
    values = np.random.default_rng(3).permutation(1000).astype(float)
    assert percentile_interval(values, 99.0) == percentile_interval(np.sort(values), 99.0)
    assert values[0] != 0.0, "the values were not sorted in place"


@pytest.mark.parametrize("n", [200, 400, 2000])
def test_the_interval_covers_the_true_p99(n):
    """500 runs of lognormal latencies: an interval of 95 % must hold the true P99 in at least 93 % of them."""
    rng = np.random.default_rng(20260301)
    true_p99 = math.exp(2.3263478740408408)
    covered = 0
    for _ in range(500):
        interval = percentile_interval(rng.lognormal(size=n), 99.0)
        above = interval.low is None or interval.low <= true_p99
        below = interval.high is None or true_p99 <= interval.high
        covered += above and below
    assert covered >= 0.93 * 500


def test_an_interval_of_half_the_confidence_covers_less():
    """The simulation can tell a wrong interval: at 50 % it does not cover 93 %."""
    rng = np.random.default_rng(20260301)
    true_median = 1.0
    intervals = [percentile_interval(rng.lognormal(size=400), 50.0, level=0.5) for _ in range(500)]
    covered = sum(i.low <= true_median <= i.high for i in intervals if i.low is not None and i.high is not None)
    assert 0.42 * 500 < covered < 0.62 * 500


@given(
    values=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300),
    percent=st.floats(1.0, 99.0),
    levels=st.tuples(st.floats(0.5, 0.99), st.floats(0.5, 0.99)),
)
def test_ends_are_values_in_order_and_widen_with_the_confidence(values, percent, levels):
    array = np.array(values)
    narrow, wide = (percentile_interval(array, percent, level=level) for level in sorted(levels))
    for interval in (narrow, wide):
        assert {interval.low, interval.high} <= {None, *values}
        assert interval.low is None or interval.high is None or interval.low <= interval.high
    assert wide.low is None or (narrow.low is not None and wide.low <= narrow.low)
    assert wide.high is None or (narrow.high is not None and narrow.high <= wide.high)


def test_the_percentile_interpolates_between_values():
    assert percentile(np.array([4.0, 1.0, 3.0, 2.0]), 50.0) == 2.5
    assert percentile(np.array([7.0]), 99.0) == 7.0


@given(st.floats(1e-6, 1.0 - 1e-6), st.integers(1, 5000), st.floats(0.001, 0.999))
@example(0.5, 97, 0.5)
def test_the_binomial_quantile_is_the_least_count_that_reaches_the_probability(probability, n, share):
    k = binomial_quantile(probability, n, share)
    # 1e-11: a count that reaches it but for rounding is either.
    assert stats.binom.cdf(k, n, share) >= probability * (1.0 - 1e-11)
    assert k == 0 or stats.binom.cdf(k - 1, n, share) < probability * (1.0 + 1e-11)


@given(st.floats(0.001, 0.999), st.floats(1.0, 200.0))
def test_the_student_quantile_is_that_of_the_distribution(probability, freedom):
    assert student_quantile(probability, freedom) == pytest.approx(
        stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-12
    )


@given(st.integers(1, 4000), st.data(), st.floats(0.5, 0.999))
def test_the_interval_of_a_share_is_the_exact_one(n, data, level):
    count = data.draw(st.integers(0, n))
    exact = stats.binomtest(count, n).proportion_ci(level)
    assert share_interval(count, n, level=level) == pytest.approx((exact.low, exact.high), rel=1e-9, abs=1e-12)
