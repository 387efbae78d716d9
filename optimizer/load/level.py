"""Whether throughput is level, so that the window may open.

Tokens are counted in slices of a second (a tenth of the time that the warm-up may take, where that is less). They are
level when the last two slices differ by at most 10 %. Few tokens a second never are; there the last six slices must
show no trend (Mann-Kendall at 6 %, two-sided), which chance alone lets pass nearly always.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from optimizer.load.client.trace import RequestTrace
from optimizer.load.trend import mann_kendall_z

LONGEST_SLICE_S = 1.0
_SLICES_IN_WARM_UP = 10
_CLOSE = 0.1
_TREND_SLICES = 6
_TREND_Z = 1.88
"""What |S| = 11 of 15 pairs comes to: the 6 % beyond which six values in a row count as climbing or falling."""


class Levelling:
    """Counts the tokens of one warm-up.

    Args:
        traces: The requests; whoever sends them adds to it.
        start_s: When the load began, on the monotonic clock.
        warm_up_s: How long it may take to be level.
    """

    def __init__(self, traces: Sequence[RequestTrace], start_s: float, warm_up_s: float) -> None:
        self._traces = traces
        self._start_s = start_s
        self._slice_s = min(LONGEST_SLICE_S, warm_up_s / _SLICES_IN_WARM_UP)
        self._counted_from_s = start_s

    @property
    def slice_s(self) -> float:
        """Length of a slice."""
        return self._slice_s

    def start_again(self, now_s: float) -> None:
        """What came so far says nothing: the engine was compiling."""
        self._counted_from_s = now_s

    def is_level(self, now_s: float) -> bool:
        """Whether the whole slices before now are level."""
        slices = int((now_s - self._counted_from_s) / self._slice_s)
        if slices < 2:
            return False
        first_s = now_s - min(slices, _TREND_SLICES) * self._slice_s
        times_s, tokens = array("d"), array("i")
        for trace in self._traces:
            if trace.ended_s is None or trace.ended_s >= first_s:
                times_s.extend(trace.arrivals.times_s)
                tokens.extend(trace.arrivals.tokens)
        which = np.floor((np.asarray(times_s) - first_s) / self._slice_s)
        inside = (which >= 0) & (which < min(slices, _TREND_SLICES))
        counts = np.bincount(
            which[inside].astype(np.int64), weights=np.asarray(tokens)[inside], minlength=min(slices, _TREND_SLICES)
        )
        before, last = counts[-2:]
        if max(before, last) > 0 and abs(last - before) <= _CLOSE * max(before, last):
            return True
        return (
            counts.size == _TREND_SLICES
            and counts.sum() > 0
            and abs(mann_kendall_z(counts.astype(np.float64))) < _TREND_Z
        )
