"""Intervals of correlated requests, and measurements that cannot win any more."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.core.statistics import Interval
from optimizer.objectives.sequential import (
    block_means,
    cannot_beat,
    effective_requests,
    mean_interval,
    optimistic_mean,
    tail_percentile_interval,
)
from optimizer.objectives.sequential.dominance import FEWEST_BLOCKS


def covers(interval: Interval, true: float) -> bool:
    return (interval.low is None or interval.low <= true) and (interval.high is None or interval.high >= true)


def test_repeated_latencies_are_worth_less_than_independent_ones() -> None:
    draws = np.random.default_rng(1).random(20_000)
    assert effective_requests(draws, 99.0) > 15_000
    # Runs of exactly four: a variance four times that of independent ones, and a geometric model says a little more.
    assert 20_000 / 10 < effective_requests(np.repeat(draws[:5000], 4), 99.0) < 20_000 / 3


def test_one_long_run_at_the_top_is_seen_and_equal_latencies_are_none() -> None:
    values = np.random.default_rng(7).random(1000)
    values[400:416] = 2.0
    assert effective_requests(values, 99.0) < 100
    assert effective_requests(np.ones(1000), 99.0) == 1000


@pytest.mark.parametrize("repeat", [1, 4])
def test_percentile_intervals_cover_what_they_should(repeat: int) -> None:
    rng = np.random.default_rng(2)
    hits = sum(
        covers(tail_percentile_interval(np.repeat(rng.random(2000 // repeat), repeat), 99.0), 0.99) for _ in range(100)
    )
    assert hits >= 88


@pytest.mark.parametrize("bundled", [2, 4, 8])
def test_the_median_gap_of_bundled_tokens_is_known(bundled: int) -> None:
    """All but the first token of a bundle come at the same moment."""
    gaps_ms = np.zeros(4000)
    gaps_ms[::bundled] = 40.0 + np.random.default_rng(1).random(4000 // bundled)
    interval = tail_percentile_interval(gaps_ms, 50.0)
    assert interval.low == 0.0
    assert interval.high is not None
    assert interval.high < (1.0 if bundled > 2 else 41.0)


def test_an_end_beyond_the_data_or_on_a_failed_request_is_open() -> None:
    values = np.random.default_rng(3).random(200)
    assert tail_percentile_interval(values, 99.0).high is None
    values = np.random.default_rng(3).random(2000)
    values[::50] = np.inf
    interval = tail_percentile_interval(values, 99.0)
    assert (interval.low, interval.high) == (values[np.isfinite(values)].max(), None)
    assert tail_percentile_interval(np.empty(0), 99.0) == Interval(None, None)


def test_mean_intervals_cover_in_spite_of_correlation() -> None:
    rng, hits = np.random.default_rng(4), 0
    for _ in range(100):
        hits += covers(mean_interval(np.repeat(rng.standard_normal(150), 4)), 0.0)
    assert hits >= 88


def test_a_mean_of_too_few_or_of_failed_requests_is_unbounded() -> None:
    assert mean_interval(np.array([1.0, 2.0, 3.0])) == Interval(None, None)
    assert mean_interval(np.array([1.0, 2.0, 3.0, 4.0, np.inf])) == Interval(None, None)


def test_blocks_end_with_the_last_value() -> None:
    assert block_means(np.arange(7, dtype=np.float64), 3).tolist() == [1.5, 3.5, 5.5]


def test_a_slower_one_cannot_beat_the_incumbent_and_an_equal_one_may() -> None:
    tokens = 1000.0 + 50.0 * np.random.default_rng(5).standard_normal(60)
    assert cannot_beat(tokens, 1300.0, maximise=True)
    assert not cannot_beat(tokens, 1000.0, maximise=True)
    assert cannot_beat(tokens, 700.0, maximise=False)
    assert not cannot_beat(tokens, 1000.0, maximise=False)


def test_the_bound_waits_for_enough_blocks_and_tightens() -> None:
    tokens = 1000.0 + 50.0 * np.random.default_rng(6).standard_normal(200)
    assert optimistic_mean(tokens[: FEWEST_BLOCKS - 1], maximise=True) is None
    early, late = optimistic_mean(tokens[:20], maximise=True), optimistic_mean(tokens, maximise=True)
    assert early is not None
    assert late is not None
    assert early > late > float(tokens.mean())
    assert optimistic_mean(np.full(20, np.nan), maximise=True) is None
