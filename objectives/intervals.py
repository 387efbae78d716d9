"""The interval that stands beside a metric of a measurement: latency statistics, and rates per second."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from optimizer.core.measurement import FloatArray, LoadResult
from optimizer.core.statistics import Interval
from optimizer.objectives.goodput import good_requests
from optimizer.objectives.latencies import latencies
from optimizer.objectives.limits import Limit
from optimizer.objectives.sequential import mean_interval, tail_percentile_interval

_LATENCY = re.compile(r"(mean|p(\d+(?:\.\d+)?))_(e2e|ttft|tpot|itl)_ms")


def metric_interval(
    load: LoadResult, metric: str, value: float, limits: Sequence[Limit] = (), *, confidence: float = 0.9
) -> Interval | None:
    """The interval for the true value of a metric, an unbounded end being None.

    Latencies count failed requests as infinitely slow. A rate's interval comes from what each whole second of the
    window brought, and pays for their correlation.

    Args:
        load: What was measured.
        metric: Name in the table of metrics.
        value: Its value.
        limits: For goodput: which requests are good.
        confidence: Two-sided, at one look.

    Returns:
        None for a metric that is counted or sampled otherwise, or for a rate over fewer than four seconds.
    """
    match = _LATENCY.fullmatch(metric)
    if match is not None:
        known_ms = latencies(load, match[3]).known_ms
        if match[2] is None:
            return mean_latency_interval(known_ms, level=confidence)
        return tail_percentile_interval(known_ms, float(match[2]), level=confidence)
    per_second = rate_per_second(load, metric, limits)
    if per_second is None or per_second.size < 4 or value <= 0.0:
        return None
    around = mean_interval(per_second, level=confidence)
    if around.low is None or around.high is None:
        return None
    # The bins are whole seconds and the value is of the whole window: the width is theirs, the centre the value.
    half = (around.high - around.low) / 2.0
    return Interval(max(0.0, value - half), value + half)


def mean_latency_interval(known_ms: FloatArray, *, level: float) -> Interval:
    """As `mean_interval`, which of few independent requests reaches below 0: no latency lies there."""
    around = mean_interval(known_ms, level=level)
    return around if around.low is None else replace(around, low=max(0.0, around.low))


def rate_per_second(load: LoadResult, metric: str, limits: Sequence[Limit] = ()) -> FloatArray | None:
    """What each whole second of the window brought, in order; shape (seconds,).

    Args:
        load: What was measured, or a look at it while it runs.
        metric: `output_tokens_per_s`, `total_tokens_per_s`, `requests_per_s` or `goodput_requests_per_s`.
        limits: For goodput.

    Returns:
        None for another metric. Of requests, the seconds after the first request's latency: before it ends, only
        requests that are not counted can end.
    """
    if metric == "output_tokens_per_s":
        return load.tokens_per_s_bins.astype(np.float64)
    if metric == "total_tokens_per_s":
        return load.tokens_per_s_bins + _prompt_tokens_per_s(load)
    if metric not in ("requests_per_s", "goodput_requests_per_s"):
        return None
    which = load.ok if metric == "requests_per_s" else good_requests(load, limits)
    ended_s = load.last_token_s[which] - load.window_start_s
    seconds = math.floor(load.window_s)
    skipped = math.ceil(float(np.median(load.e2e_s))) if which.any() else 0
    if seconds <= skipped:
        return np.zeros(0)
    counts, _ = np.histogram(ended_s, bins=np.arange(skipped, seconds + 1))
    return counts.astype(np.float64)


def _prompt_tokens_per_s(load: LoadResult) -> FloatArray:
    """Prompts of the successful requests that were due in each whole second of the window, shape (seconds,)."""
    due_s, tokens = (load.scheduled_s - load.window_start_s)[load.ok], load.prompt_tokens[load.ok]
    sums, _ = np.histogram(due_s, bins=np.arange(load.tokens_per_s_bins.size + 1), weights=tokens)
    return sums.astype(np.float64)
