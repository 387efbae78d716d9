"""How requests over a level follow each other: the counts that a model of their runs needs.

A request is *active* when one of the `window` requests before it was over the level. With window 1 the two kinds of
requests are the two states of a Markov chain; a longer window keeps a run together that is broken by a few fast ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


class OverSequence:
    """Requests in order of schedule, some of them over a level.

    Work is proportional to the number of those, not to that of all requests: a verdict is asked for every second.

    Args:
        over: Which requests were over the level, shape (n,).
    """

    def __init__(self, over: BoolArray) -> None:
        self._position = np.flatnonzero(over)
        self._gap = np.diff(self._position)

    def transitions(self, window: int, first: IntArray) -> FloatArray:
        """Counts among the first so many requests, for each of several numbers.

        Args:
            window: How many requests back one over the level is remembered, >= 1.
            first: Numbers of requests, each within 0..n, shape (looks,).

        Returns:
            Shape (looks, 4): active and over, active and not, idle and over, idle and not. Rows add up to `first`.
        """
        if self._position.size == 0:
            return np.stack([0 * first, 0 * first, 0 * first, first], axis=1).astype(np.float64)
        over = np.searchsorted(self._position, first)
        in_run = np.concatenate([[0, 0], np.cumsum(self._gap <= window)])
        covered = np.concatenate([[0, 0], np.cumsum(np.minimum(self._gap, window))])
        last = self._position[np.maximum(over - 1, 0)]
        active = covered[over] + np.where(over > 0, np.minimum(window, first - 1 - last), 0)
        stayed = in_run[over]
        entered = over - stayed
        counts = np.stack([stayed, active - stayed, entered, first - active - entered], axis=1)
        return counts.astype(np.float64)

    def largest_run(self, window: int, first: IntArray) -> FloatArray:
        """Most requests over the level in one run that began and ended among the first so many, shape (looks,).

        One that still goes on may be no run at all: where every tenth request is over the level, it never ends.
        """
        if self._position.size == 0:
            return np.zeros(first.size)
        index = np.arange(self._position.size)
        starts = np.concatenate([[True], self._gap > window])
        size = index - np.maximum.accumulate(np.where(starts, index, 0)) + 1
        ended = np.concatenate([[0], np.maximum.accumulate(np.where(np.append(starts[1:], True), size, 0))])
        over = np.searchsorted(self._position, first)
        goes_on = (over > 0) & (first - 1 - self._position[np.maximum(over - 1, 0)] < window)
        largest: FloatArray = ended[over - goes_on].astype(np.float64)
        return largest

    def transitions_without(self, length: int, window: int, first: IntArray) -> FloatArray:
        """As `transitions`, without those of the worst stretch of `length` requests, found afresh for each look.

        A run that outlasts the stretch counts as entered after it: all requests over the level, without end, must not
        look like one run that was always there.
        """
        end = self._worst_stretch_end(length, first)
        start = np.maximum(end - length, 0)
        looks, ends, starts = np.split(self.transitions(window, np.concatenate([first, end, start])), 3)
        counts: FloatArray = looks - (ends - starts)
        resumed = self._goes_on(window, end, first)
        counts[:, 0] -= resumed
        counts[:, 2] += resumed
        return counts

    def _goes_on(self, window: int, end: IntArray, first: IntArray) -> BoolArray:
        """Whether the next request over the level after `end` is before `first` and in the same run, shape (looks,)."""
        following = np.searchsorted(self._position, end)
        in_run = np.concatenate([[False], self._gap <= window, [False]])
        goes_on: BoolArray = (following < np.searchsorted(self._position, first)) & in_run[following]
        return goes_on

    def _worst_stretch_end(self, length: int, first: IntArray) -> IntArray:
        """Where the first such stretch ends, shape (looks,), each within 0..first; 0 while none is over the level."""
        ends = self._position + 1
        inside = np.arange(1, ends.size + 1) - np.searchsorted(self._position, ends - length)
        best = np.maximum.accumulate(inside)
        is_new = np.diff(best, prepend=0) > 0
        worst = np.concatenate([[0], np.maximum.accumulate(np.where(is_new, ends, 0))])
        found: IntArray = worst[np.searchsorted(self._position, first)].astype(np.int64)
        return found
