"""Which requests count as good: those that meet all limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import FloatArray, LoadResult
from optimizer.objectives.latencies import request_gaps
from optimizer.objectives.limits import Limit

GOODPUT = "goodput_requests_per_s"


def good_requests(load: LoadResult, limits: Sequence[Limit]) -> npt.NDArray[np.bool_]:
    """Which counted requests succeeded and kept each limit's milliseconds, shape (n,).

    A request has one TTFT, TPOT and E2E, and each must be within its limit, whichever statistic the limit is on. Of its
    gaps between tokens the limit's own statistic must be: P99 ITL <= 50 ms asks that 99 % of its gaps are. A request
    with one token keeps limits on TPOT and ITL.

    Args:
        load: What was measured.
        limits: In milliseconds.
    """
    good = load.ok
    for limit in limits:
        good = good & (_of_each_ms(load, limit) <= limit.limit_ms)
    return good


def goodput_per_s(load: LoadResult, limits: Sequence[Limit]) -> float | None:
    """Requests that ended inside the window per second of it, times the share of good ones; None of an empty window.

    The share is that of all counted requests: those that are counted and end inside the window are the faster ones.
    """
    if load.window_s <= 0.0:
        return None
    succeeded = int(np.count_nonzero(load.ok))
    if not succeeded:
        return 0.0
    share = int(np.count_nonzero(good_requests(load, limits))) / succeeded
    return share * load.window_requests / load.window_s


def _of_each_ms(load: LoadResult, limit: Limit) -> FloatArray:
    """The latency of each request in ms, shape (n,); 0 where it has none, NaN where it failed."""
    ends_s = {"ttft": load.first_token_s, "e2e": load.last_token_s}
    each_ms: FloatArray
    if limit.slo.metric in ends_s:
        each_ms = (ends_s[limit.slo.metric] - load.scheduled_s) * 1000.0
        return each_ms
    if limit.slo.metric == "tpot":
        decoding_s = np.where(load.output_tokens > 1, load.last_token_s - load.first_token_s, 0.0)
        each_ms = decoding_s * 1000.0 / np.maximum(load.output_tokens - 1, 1)
        return each_ms
    return _gaps_of_each_ms(load, limit.slo.percent)


def _gaps_of_each_ms(load: LoadResult, percent: float | None) -> FloatArray:
    statistic_ms = np.where(load.ok, 0.0, np.nan)
    for number, gaps_s in request_gaps(load, load.ok).each():
        statistic_ms[number] = 1000.0 * (np.mean(gaps_s) if percent is None else np.percentile(gaps_s, percent))
    return statistic_ms
