"""Whether a percentile keeps its limit: FEASIBLE, INFEASIBLE or UNDECIDED, valid whenever it is looked at.

Two tests run side by side. FEASIBLE rejects "the percentile is at least `tolerance` above the limit", INFEASIBLE
rejects "it is at least `tolerance` below". A percentile between the two may be called either way; one on the edge or
outside is called wrongly with at most the error level. docs/verdict.md has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from optimizer.core.measurement import FloatArray, IntArray
from optimizer.core.scoring import Verdict
from optimizer.objectives.sequential.evidence import Side, log_evidence
from optimizer.objectives.sequential.intervals import effective_requests, run_length, tail_percentile_interval
from optimizer.objectives.sequential.runs import BoolArray

SLACK_NATS = 0.5
"""FEASIBLE asks for so much less than ln(1 / level). Ville's bound is not reached, since the denominator takes the
worst correlation and not the true one; in simulation the error at levels 1, 5 and 10 % stays within."""
_FIRST_LOOK, _LOOK_GROWTH = 20, 1.04
"""Looks are at fixed numbers of requests, so that the same requests give the same verdict however often one asks."""
_STRETCH_SHARE, _LONGEST_STRETCH = 0.5, 64
"""INFEASIBLE must hold without the worst stretch of half the mean distance between allowed requests over the limit."""
_FAR_BELOW = 0.85
_FAR_BELOW_LEARNS = 2.5
_FAR_BELOW_RUNS = 4.0
_OFTEN_OVER = 0.05
"""Where at most one of the first requests (2.5 mean distances between allowed ones over the limit) comes near what
FEASIBLE has to exclude, hardly any will be over it, and their runs cannot be seen. Near is within 15 %, or more where
latencies spread widely. Runs are then reckoned with four times as long as those of ten times as many of the slowest
of these first requests, which are 1 long if nothing is correlated."""


@dataclass(frozen=True, slots=True)
class SloTest:
    """What is asked of one latency.

    Attributes:
        percentile: 0 < percentile < 100.
        limit: Upper bound in the unit of the latencies, > 0.
        level: Largest chance of a wrong FEASIBLE, and of a wrong INFEASIBLE; between 0 and 0.5.
        tolerance: Relative distance from the limit within which either verdict is right; 0 is strict, below 1.
        longest_run: Mean length of a run over the limit to reckon with as long as none so long was seen, >= 1. Less is
            reckoned with where the first requests are all far below the limit.
    """

    percentile: float
    limit: float
    level: float = 0.05
    tolerance: float = 0.05
    longest_run: float = 16.0

    def __post_init__(self) -> None:
        if not 0.0 < self.percentile < 100.0:
            raise ValueError(f"percentile {self.percentile} does not lie between 0 and 100")
        if not (self.limit > 0.0 and math.isfinite(self.limit)):
            raise ValueError(f"limit {self.limit} is not a finite number above 0")
        if not 0.0 < self.level < 0.5:
            raise ValueError(f"level {self.level} does not lie between 0 and 0.5")
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"tolerance {self.tolerance} does not lie in [0, 1)")
        if self.longest_run < 1.0:
            raise ValueError(f"longest_run {self.longest_run} is below 1")

    @property
    def allowed(self) -> float:
        """Largest share of requests over the limit that keeps it."""
        return round(1.0 - self.percentile / 100.0, 12)

    @property
    def upper(self) -> float:
        """A percentile here or above must not be called FEASIBLE."""
        return self.limit * (1.0 + self.tolerance)

    @property
    def lower(self) -> float:
        """A percentile here or below must not be called INFEASIBLE."""
        return self.limit * (1.0 - self.tolerance)


@dataclass(frozen=True, slots=True)
class VerdictState:
    """Where a test stands.

    Attributes:
        verdict: Of the first look that decided, or UNDECIDED.
        n: Requests that were judged.
        n_effective: How many independent ones they are worth.
        over: How many were over the limit.
        interval_low: Lower end for the percentile, or None when unbounded; each end errs with the test's level.
        interval_high: Upper end, or None when the data do not bound it.
        evidence_for: Log evidence for FEASIBLE now, in nats; decides at `needed_for`.
        evidence_against: Log evidence for INFEASIBLE now, in nats; decides at `needed_against`.
        needed_for: ln(1 / level), less the slack.
        needed_against: ln(1 / level).
        decided_at: Number of requests at the look that decided, or None.
    """

    verdict: Verdict
    n: int
    n_effective: float
    over: int
    interval_low: float | None
    interval_high: float | None
    evidence_for: float
    evidence_against: float
    needed_for: float
    needed_against: float
    decided_at: int | None


def judge(
    test: SloTest, latencies: FloatArray, failed: BoolArray | None = None, pending: BoolArray | None = None
) -> VerdictState:
    """Judges all requests so far.

    Args:
        test: What is asked.
        latencies: In order of schedule, shape (n,), in the limit's unit. Of a pending request, its age.
        failed: Which failed or will never end, shape (n,): over any limit, as is a latency that is NaN.
        pending: Which are still under way, shape (n,). One that is older than `test.upper` counts as over the limit;
            the first that is younger, and all after it, wait for a later look.
    """
    return _judge(test, _settled(test, latencies, failed, pending), after=0)


def _judge(test: SloTest, values: FloatArray, *, after: int) -> VerdictState:
    """As `judge`, with only those looks that lie beyond the first `after` requests, and the last one."""
    needed_for, needed_against = math.log(1.0 / test.level) - SLACK_NATS, math.log(1.0 / test.level)
    if values.size == 0:
        return VerdictState(Verdict.UNDECIDED, 0, 0.0, 0, None, None, 0.0, 0.0, needed_for, needed_against, None)
    looks = _looks(values.size)
    looks = looks[(looks > after) | (looks == values.size)]
    evidence_for, evidence_against = _evidence_for(test, values, looks), _evidence_against(test, values, looks)
    verdict, decided_at = _first_decision(looks, evidence_for - needed_for, evidence_against - needed_against)
    interval = tail_percentile_interval(values, test.percentile, level=1.0 - 2.0 * test.level)
    return VerdictState(
        verdict=verdict,
        n=values.size,
        n_effective=effective_requests(values, test.percentile),
        over=int(np.count_nonzero(values > test.limit)),
        interval_low=interval.low,
        interval_high=interval.high,
        evidence_for=float(evidence_for[-1]),
        evidence_against=float(evidence_against[-1]),
        needed_for=needed_for,
        needed_against=needed_against,
        decided_at=decided_at,
    )


class SequentialVerdict:
    """A test that is asked again and again while requests come in; its first decision stands.

    Not safe for use from several threads at once.

    Args:
        test: What is asked.
    """

    def __init__(self, test: SloTest) -> None:
        self._test = test
        self._judged = 0
        self._decision: tuple[Verdict, int] | None = None

    @property
    def test(self) -> SloTest:
        """What is asked."""
        return self._test

    def update(
        self, latencies: FloatArray, failed: BoolArray | None = None, pending: BoolArray | None = None
    ) -> VerdictState:
        """Judges all requests so far, as `judge` does: those of earlier calls again, and the new ones after them."""
        state = _judge(self._test, _settled(self._test, latencies, failed, pending), after=self._judged)
        self._judged = max(self._judged, state.n)
        if self._decision is None and state.decided_at is not None:
            self._decision = (state.verdict, state.decided_at)
        if self._decision is None:
            return state
        return replace(state, verdict=self._decision[0], decided_at=self._decision[1])


def _settled(test: SloTest, latencies: FloatArray, failed: BoolArray | None, pending: BoolArray | None) -> FloatArray:
    """The requests that can be judged, +inf for those that failed."""
    lost = np.isnan(latencies) if failed is None else np.isnan(latencies) | failed
    values: FloatArray = np.where(lost, np.inf, latencies)
    if pending is not None:
        values = np.where(pending & (values > test.upper), np.inf, values)
        waiting = np.flatnonzero(pending & np.isfinite(values))
        if waiting.size:
            values = values[: waiting[0]]
    return values


def _looks(n: int) -> IntArray:
    fixed = _FIRST_LOOK * _LOOK_GROWTH ** np.arange(math.ceil(math.log(max(n / _FIRST_LOOK, 1.0), _LOOK_GROWTH)) + 1)
    looks: IntArray = np.unique(np.append(np.floor(fixed[fixed < n]), n).astype(np.int64))
    return looks


def _first_decision(looks: IntArray, excess_for: FloatArray, excess_against: FloatArray) -> tuple[Verdict, int | None]:
    """The first look at which one of the tests has what it needs; of two at one look, the one that has more."""
    crossed = np.flatnonzero(np.maximum(excess_for, excess_against) >= 0.0)
    if crossed.size == 0:
        return Verdict.UNDECIDED, None
    first = crossed[0]
    verdict = Verdict.FEASIBLE if excess_for[first] > excess_against[first] else Verdict.INFEASIBLE
    return verdict, int(looks[first])


def _evidence_against(test: SloTest, values: FloatArray, looks: IntArray) -> FloatArray:
    stretch = min(math.ceil(_STRETCH_SHARE / test.allowed), _LONGEST_STRETCH)
    longest = np.full(looks.size, test.longest_run)
    over = values > test.lower
    return log_evidence(over, test.allowed, Side.ABOVE, looks, longest_run=longest, without_stretch=stretch)


def _evidence_for(test: SloTest, values: FloatArray, looks: IntArray) -> FloatArray:
    longest = np.full(looks.size, test.longest_run)
    learns = math.ceil(_FAR_BELOW_LEARNS / test.allowed)
    if test.allowed <= _OFTEN_OVER and values.size > learns and _is_far_below(test, values[:learns]):
        seen = run_length(values[:learns], 100.0 - 1000.0 * test.allowed)
        longest[looks > learns] = min(test.longest_run, _FAR_BELOW_RUNS * seen)
    return log_evidence(values > test.upper, test.allowed, Side.BELOW, looks, longest_run=longest)


def _is_far_below(test: SloTest, first: FloatArray) -> bool:
    """Whether at most one of the first requests comes near `test.upper`."""
    median, high = (float(x) for x in np.quantile(first, (0.5, 0.95), method="higher"))
    if not 0.0 < high < math.inf:
        return False
    # The cube root of P95 / P50 is 0.55 standard deviations of a lognormal latency: in a sample whose P99 is at
    # `test.upper`, 3.7 % lie beyond that.
    near = test.upper * min(_FAR_BELOW, float(np.cbrt(median / high)))
    return int(np.count_nonzero(first > near)) <= 1
