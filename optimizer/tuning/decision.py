"""When a running load knows enough: asked once a second with what has been measured so far.

Requests are judged in the order of their schedule, up to the first whose latency is still open: one that has not ended
is known only once it is over the limit. The fast ones that were sent after it must not count before it does.
"""

from __future__ import annotations

import importlib
import math
from typing import Final, Protocol

import numpy as np

from optimizer.core.measurement import UNFINISHED, FloatArray, LoadResult
from optimizer.core.scoring import Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.objectives import Limit, Slo, VerdictRules
from optimizer.objectives.failures import judge_failures
from optimizer.objectives.intervals import rate_per_second
from optimizer.objectives.latencies import Latencies, latencies
from optimizer.objectives.sequential import (
    SloTest,
    block_means,
    cannot_beat,
    judge,
    mean_interval,
    optimistic_mean,
    tail_percentile_interval,
)
from optimizer.tuning.aim import Aim

_GROWTH: Final = 1.04
"""A limit is judged again when there are 4 % more requests: then the test has a further look, and not before."""
_BLOCK: Final = 20
"""Requests in one block of a mean: a bound on it that holds whenever it is looked at needs blocks of one length."""
_MEAN_WITHIN: Final = 0.05
"""A mean that sets the limits of a study is known when its interval reaches 5 % to either side."""


class _Question(Protocol):
    """One thing to find out."""

    def answer(self, view: LoadResult) -> Verdict:
        """What is known by now; UNDECIDED lets the load go on."""


class StopDecision:
    """Says why a load run may stop, or None. Made for one run; each look must hold all of the one before.

    Args:
        aim: What is asked of the run.
    """

    def __init__(self, aim: Aim) -> None:
        # Takes a third of a second to load, in which no answer of a running load would be read.
        importlib.import_module("scipy.special")
        self._aim = aim
        self._questions: tuple[_Question, ...] = (
            *(_question(limit, aim.rules) for limit in aim.limits),
            *(_StatisticFound(slo, aim.rules) for slo in aim.to_measure),
            _FewFail(aim.rules),
        )

    def __call__(self, view: LoadResult) -> StopReason | None:
        """HOPELESS when a limit cannot hold, DECIDED when all do, DOMINATED when the best so far cannot be beaten.

        Where the whole figure is wanted, DECIDED once every limit is decided, whichever way.

        The window's own minima and maxima are for the load to keep.

        Args:
            view: What is known so far; requests under way have the error `UNFINISHED`.
        """
        answers = [question.answer(view) for question in self._questions]
        if Verdict.INFEASIBLE in answers and not self._aim.whole:
            return StopReason.HOPELESS
        if Verdict.UNDECIDED not in answers:
            return StopReason.DECIDED
        return StopReason.DOMINATED if self._is_dominated(view) else None

    def _is_dominated(self, view: LoadResult) -> bool:
        aim = self._aim
        if aim.incumbent is None or not aim.objective.maximise:
            return False
        per_second = rate_per_second(view, aim.objective.metric, aim.limits)
        if per_second is None:
            return False
        return cannot_beat(per_second, aim.incumbent, maximise=True, level=aim.rules.level)


def _question(limit: Limit, rules: VerdictRules) -> _Question:
    if limit.slo.percent is None:
        return _MeanLimit(limit, rules)
    return _PercentileLimit(SloTest(limit.slo.percent, limit.limit_ms, rules.level, rules.tolerance), limit.slo.metric)


class _PercentileLimit:
    """Whether a percentile keeps its limit, by the sequential test; a decision stands."""

    def __init__(self, test: SloTest, metric: str) -> None:
        self._test = test
        self._metric = metric
        self._judged = 0
        self._verdict = Verdict.UNDECIDED

    def answer(self, view: LoadResult) -> Verdict:
        """Judges what is new, if it is enough for a further look."""
        if self._verdict is not Verdict.UNDECIDED:
            return self._verdict
        if _first_open(view, self._test.upper) < _GROWTH * self._judged:
            return Verdict.UNDECIDED
        values_ms = _settled(latencies(view, self._metric), self._test.upper)
        self._judged = _first_open(view, self._test.upper)
        state = judge(self._test, values_ms)
        # The last look is at whatever number there is now, and would not be there when the whole run is judged.
        if state.decided_at is not None and state.decided_at < state.n:
            self._verdict = state.verdict
        return self._verdict


def _first_open(view: LoadResult, over_ms: float) -> int:
    """Number of requests before the first that is under way and younger than a limit; cheap, for every second."""
    at = -1
    try:
        while True:
            at = view.errors.index(UNFINISHED, at + 1)
            if (view.now_s - view.scheduled_s[at]) * 1000.0 <= over_ms:
                return at
    except ValueError:
        return len(view.errors)


def _settled(found: Latencies, over_ms: float) -> FloatArray:
    """The values up to the first that is open; a request under way that is over the limit will stay so."""
    values_ms = np.where(found.pending & (found.values_ms > over_ms), np.inf, found.for_judge_ms)
    waiting = np.flatnonzero(found.pending & np.isfinite(values_ms))
    return values_ms[: waiting[0]] if waiting.size else values_ms


class _MeanLimit:
    """Whether a mean keeps its limit, by bounds that hold whenever they are looked at."""

    def __init__(self, limit: Limit, rules: VerdictRules) -> None:
        self._limit = limit
        self._rules = rules

    def answer(self, view: LoadResult) -> Verdict:
        """Bounds from the means of blocks of requests."""
        known_ms = latencies(view, self._limit.slo.metric).known_ms
        if np.isinf(known_ms).any():
            return Verdict.INFEASIBLE
        blocks = known_ms.size // _BLOCK
        if blocks == 0:
            return Verdict.UNDECIDED
        means_ms = block_means(known_ms[: blocks * _BLOCK], blocks)
        low_ms, high_ms = (
            optimistic_mean(means_ms, maximise=upper, level=self._rules.level) for upper in (False, True)
        )
        if high_ms is not None and high_ms <= self._limit.limit_ms * (1.0 + self._rules.tolerance):
            return Verdict.FEASIBLE
        if low_ms is not None and low_ms > self._limit.limit_ms * (1.0 - self._rules.tolerance):
            return Verdict.INFEASIBLE
        return Verdict.UNDECIDED


class _StatisticFound:
    """Whether the statistic that will set a limit is known: the data bound a percentile, or a mean is within 5 %."""

    def __init__(self, slo: Slo, rules: VerdictRules) -> None:
        self._slo = slo
        self._confidence = rules.confidence

    def answer(self, view: LoadResult) -> Verdict:
        """FEASIBLE once it is."""
        known_ms = latencies(view, self._slo.metric).known_ms
        if self._slo.percent is not None:
            found = tail_percentile_interval(known_ms, self._slo.percent, level=self._confidence)
            return Verdict.UNDECIDED if found.high is None else Verdict.FEASIBLE
        found = mean_interval(known_ms, level=self._confidence)
        if found.low is None or found.high is None:
            return Verdict.UNDECIDED
        near = found.high - found.low <= _MEAN_WITHIN * (found.high + found.low)
        return Verdict.FEASIBLE if near else Verdict.UNDECIDED


class _FewFail:
    """Whether too many requests fail."""

    def __init__(self, rules: VerdictRules) -> None:
        self._rules = rules
        self._judged = 0
        self._verdict = Verdict.UNDECIDED

    def answer(self, view: LoadResult) -> Verdict:
        """Of the requests before the first that is under way; too many failures are judged when 4 % were added."""
        if self._verdict is Verdict.INFEASIBLE:
            return self._verdict
        ended = view.errors[: _first_open(view, math.inf)]
        failed = np.array([error is not None for error in ended], dtype=np.bool_)
        if np.count_nonzero(failed) <= self._rules.error_rate * failed.size:
            self._verdict = Verdict.FEASIBLE if failed.size else Verdict.UNDECIDED
        elif failed.size >= _GROWTH * self._judged:
            self._judged = failed.size
            share = judge_failures(failed, self._rules)
            decided = share.decided_at is not None and share.decided_at < failed.size
            self._verdict = Verdict.INFEASIBLE if decided else Verdict.UNDECIDED
        return self._verdict
