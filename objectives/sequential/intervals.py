"""Intervals for percentiles and means of requests that are not independent."""

from __future__ import annotations

import math

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.statistics import Interval, percentile_interval, student_quantile
from optimizer.objectives.sequential.runs import OverSequence

_WINDOWS = (1, 4, 16)
_BLOCK_COUNTS = (32, 16, 8)
_LEAST_BLOCKS = 4
_MOST_TIED = 3.0
"""Requests at the percentile itself count as above it, unless so many times as many as should be would be, or nearly
all of them."""


def run_length(values: FloatArray, percent: float) -> float:
    """Mean number of requests in a run above the observed percentile, 1 if they are independent.

    Several memories (see `runs`) are tried, and the longest counts.

    Args:
        values: In order of schedule, shape (n,); may hold +inf.
        percent: 0 < percent < 100.
    """
    if values.size < 2:
        return 1.0
    share, longest = 1.0 - percent / 100.0, 1.0
    edge = np.quantile(values, percent / 100.0, method="higher")
    over = values >= edge
    # Of tokens that come in bundles all but the first have a gap of 0: the median is tied with most of them.
    if np.count_nonzero(over) > min(_MOST_TIED * share, (1.0 + share) / 2.0) * values.size + 1.0:
        over = values > edge
    sequence = OverSequence(over)
    for window in _WINDOWS:
        if window > 1 and window * share >= 1.0:
            break
        stayed, _, entered, _ = sequence.transitions(window, np.array([values.size]))[0]
        if entered:
            longest = max(longest, float((stayed + entered) / entered * (1.0 - share) ** window))
    return longest


def effective_requests(values: FloatArray, percent: float) -> float:
    """How many independent requests would tell as much of this percentile, between 1 and n.

    If a run holds m requests on average, geometrically spread, the variance of the number of requests above the
    percentile is 2 m - 1 times that of independent ones. Runs are looked at above the percentile and in the upper half
    of its tail; the longer ones count, since a stall may show in the slowest requests alone.

    Args:
        values: In order of schedule, shape (n,); may hold +inf.
        percent: 0 < percent < 100.
    """
    if not values.size:
        return 0.0
    longest = max(run_length(values, percent), run_length(values, (100.0 + percent) / 2.0))
    return max(1.0, values.size / (2.0 * longest - 1.0))


def tail_percentile_interval(values: FloatArray, percent: float, *, level: float = 0.95) -> Interval:
    """Order-statistics interval for a percentile, widened for correlation.

    Ranks are those of as many independent requests as these are worth, stretched to n. An end that lies beyond the
    smallest or the largest observation, or an upper end on a failed request, is None: the data do not bound it.

    Args:
        values: In order of schedule, shape (n,); +inf for a failed request.
        percent: 0 < percent < 100.
        level: Two-sided confidence of the interval at one look, not at all looks together.
    """
    n = values.size
    worth = math.floor(effective_requests(values, percent))
    if worth < 1:
        return Interval(None, None)
    # Ranks of a sample 1..worth, in units of the sample's own size, give shares that are read off the n values.
    ranks = percentile_interval(np.arange(1, worth + 1).astype(np.float64), percent, level=level)
    ordered = np.sort(values)
    # The largest observation is below a percentile that falls on a failed request.
    observed = int(np.count_nonzero(np.isfinite(ordered)))
    lowest = None if ranks.low is None or not observed else max(0, math.floor(ranks.low / worth * n) - 1)
    low = None if lowest is None else float(ordered[min(lowest, observed - 1)])
    high = None if ranks.high is None else float(ordered[min(n, math.ceil(ranks.high / worth * n)) - 1])
    return Interval(low, high if high is not None and math.isfinite(high) else None)


def block_means(values: FloatArray, blocks: int) -> FloatArray:
    """Means of `blocks` stretches of equal length; what is left over at the start is dropped.

    Args:
        values: In order of time, shape (n,), n >= blocks.
        blocks: How many, >= 1.
    """
    length = values.size // blocks
    means: FloatArray = values[values.size - blocks * length :].reshape(blocks, length).mean(axis=1)
    return means


def mean_interval(values: FloatArray, *, level: float = 0.95) -> Interval:
    """Student's interval for a mean from block means, of blocks long enough to be nearly independent.

    Blocks grow until their correlation with the next one is within what independent blocks show (1.64 / sqrt(blocks)),
    or eight are left; correlation that remains widens the interval by (1 + r) / (1 - r) in variance.

    Args:
        values: In order of time, shape (n,): latencies, or tokens of each second for a throughput.
        level: Two-sided confidence.

    Returns:
        Unbounded of fewer than four values, or where one of them is infinite.
    """
    if values.size < _LEAST_BLOCKS or not np.isfinite(values).all():
        return Interval(None, None)
    means, left = values, 0.0
    for blocks in (count for count in _BLOCK_COUNTS if count <= values.size):
        means = block_means(values, blocks)
        left = lag_one_correlation(means)
        if left < 1.64 / math.sqrt(blocks):
            break
    spread = float(np.std(means, ddof=1)) / math.sqrt(means.size)
    left = min(max(left, 0.0), 0.9)
    half = student_quantile((1.0 + level) / 2.0, means.size - 1) * spread * math.sqrt((1.0 + left) / (1.0 - left))
    centre = float(np.mean(values))
    return Interval(centre - half, centre + half)


def lag_one_correlation(values: FloatArray) -> float:
    """Correlation of each value with the next one; 0 where nothing varies."""
    centred = values - values.mean()
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power > 0.0 else 0.0
