"""The latencies that a limit is checked against, in order of schedule, and which of them are not known yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import FloatArray, IntArray, LoadResult

BoolArray = npt.NDArray[np.bool_]

_DIGITS = 4
"""A tenth of a microsecond. What differs by less is a rounding of the clock, and would look like runs of late requests
where all take the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Values of one latency, one element a request; for gaps between tokens, one element a gap.

    Attributes:
        values_ms: In order of schedule, gaps in the order in which they ended; +inf for a failed request, and of one
            that is under way its age. Shape (n,).
        pending: Which are still under way, shape (n,).
    """

    values_ms: FloatArray
    pending: BoolArray

    @property
    def for_judge_ms(self) -> FloatArray:
        """The values without what is mere rounding."""
        return np.round(self.values_ms, _DIGITS)

    @property
    def known_ms(self) -> FloatArray:
        """The values up to the first request that is under way."""
        waiting = np.flatnonzero(self.pending)
        return self.values_ms[: waiting[0]] if waiting.size else self.values_ms


def latencies(load: LoadResult, metric: str) -> Latencies:
    """What a limit on `metric` is checked against.

    A failed request is infinitely slow: a setting must not pass a limit by dropping its slowest requests. For gaps
    between tokens it stands for as many as a successful request has on average. Answers of one token have no time per
    output token and no gap.

    Args:
        load: What was measured, or a look at it while it runs.
        metric: `e2e`, `ttft`, `tpot` or `itl`.
    """
    if metric == "itl":
        return _gaps(load)
    ok, waiting = load.ok, load.pending
    if metric == "tpot":
        counted = ~ok | (load.output_tokens > 1)
        values_s = (load.last_token_s - load.first_token_s) / np.maximum(load.output_tokens - 1, 1)
    else:
        counted = np.ones(ok.size, dtype=np.bool_)
        values_s = (load.first_token_s if metric == "ttft" else load.last_token_s) - load.scheduled_s
    values_ms = np.where(ok, values_s * 1000.0, np.inf)
    # How slowly tokens will come is not known of a request that has no end.
    age_ms = 0.0 if metric == "tpot" else (_now_s(load) - load.scheduled_s) * 1000.0
    values_ms = np.where(waiting, age_ms, values_ms)
    return Latencies(values_ms[counted], waiting[counted])


def _now_s(load: LoadResult) -> float:
    return load.window_start_s + load.window_s if math.isnan(load.now_s) else load.now_s


def _gaps(load: LoadResult) -> Latencies:
    """Gaps by their end: one stall is one run of late gaps. Those after the first request that is under way was due
    wait for it, so that what a later look adds comes after all that an earlier one had.
    """
    ok, waiting = load.ok, load.pending
    until = int(np.argmax(waiting)) if waiting.any() else waiting.size
    gaps = request_gaps(load, np.where(np.arange(ok.size) < until, ok, False))
    failed = np.flatnonzero(~ok[:until])
    each = max(1, math.ceil(gaps.gaps_s.size / max(1, until - failed.size)))
    values_ms = np.concatenate([gaps.gaps_s * 1000.0, np.full(failed.size * each, np.inf)])
    ended_s = np.concatenate([gaps.ended_s(load), np.repeat(load.scheduled_s[failed], each)])
    order = np.argsort(ended_s, kind="stable")
    if until < waiting.size:
        order = order[: int(np.searchsorted(ended_s[order], load.scheduled_s[until], side="right"))]
    return Latencies(values_ms[order], np.zeros(order.size, dtype=np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class RequestGaps:
    """Gaps between tokens, request after request.

    Attributes:
        gaps_s: Shape (m,).
        counts: How many of them each counted request has, shape (n,).
    """

    gaps_s: FloatArray
    counts: IntArray

    def ended_s(self, load: LoadResult) -> FloatArray:
        """When each gap ended, shape (m,): they follow each other from the request's first token on."""
        total_s = np.concatenate([[0.0], np.cumsum(self.gaps_s)])
        first_s = np.where(self.counts > 0, load.first_token_s, 0.0)
        ended_s: FloatArray = total_s[1:] + np.repeat(first_s - total_s[self._starts], self.counts)
        return ended_s

    def each(self) -> Iterator[tuple[int, FloatArray]]:
        """Number of each request that has gaps, with these."""
        starts = self._starts
        for number in np.flatnonzero(self.counts):
            yield int(number), self.gaps_s[starts[number] : starts[number] + self.counts[number]]

    @property
    def _starts(self) -> IntArray:
        starts: IntArray = np.cumsum(self.counts) - self.counts
        return starts


def request_gaps(load: LoadResult, which: BoolArray) -> RequestGaps:
    """The gaps of some successful requests.

    Args:
        load: What was measured.
        which: Of the counted requests, shape (n,); none that failed.

    Raises:
        ValueError: `itl_s` does not hold one gap less than tokens for each successful request.
    """
    of_all = np.where(load.ok, np.maximum(load.output_tokens - 1, 0), 0)
    if int(of_all.sum()) != load.itl_s.size:
        raise ValueError(f"{load.itl_s.size} gaps are not one less than the tokens of each request, {of_all.sum()}")
    at = load.gaps_at if load.gaps_at.size == of_all.size else np.cumsum(of_all) - of_all
    counts = np.where(which, of_all, 0)
    starts = np.cumsum(counts) - counts
    index = np.arange(int(counts.sum())) + np.repeat(at - starts, counts)
    return RequestGaps(load.itl_s[index], counts)
