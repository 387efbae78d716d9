"""One rate of a capacity search: its traffic, when its load may stop, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from optimizer.core.measurement import LoadResult
from optimizer.core.scoring import Constraint, Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import ConstantRate, GammaArrivals, PoissonArrivals, Window
from optimizer.objectives import Limit
from optimizer.objectives.capacity import CapacityLevel, LevelPlan
from optimizer.objectives.score import check_failures, check_limit, overall
from optimizer.tuning.aim import Aim
from optimizer.tuning.decision import StopDecision

LATENCIES_IN_WINDOW: Final = 10.0
"""No window is shorter than ten times the P99 that it measures: a queue that grows must have time to show."""
SHORTEST_WINDOW_S: Final = 5.0
"""Or than the workload's own shortest window, if that is less."""
RELAXATIONS: Final = 2.0
MOST_TO_RELAX: Final = 4000
"""FEASIBLE needs 2 / (1 - rate / served)^2 requests, at most 4000: so many pass until a busy queue has forgotten that
it began empty (Whitt, Planning queueing simulations, Management Science 1989)."""
REQUESTS_IN_PROBE: Final = (3.0, 200)
REQUESTS_IN_VERDICT: Final = (60.0, 2500)
REQUESTS_GOING_UP: Final = (40.0, 1700)
"""At one rate: so many times one allowed request over the limit, or so many requests, whichever is more."""
GOES_ON_AT: Final = 1.1
MOST_TIMES: Final = 2
"""With so much headroom a verdict gets twice as many requests: FEASIBLE is then a matter of time."""
SATURATED_BY: Final = 128
"""Requests under way that saturate an engine whose max-num-seqs is not known; of others twice as many as these."""
MOST_TO_SATURATE: Final = 256
_MEAN_NEEDS: Final = 20.0
"""A limit on a mean takes the requests of one on a P95."""
_NOTHING_LEFT: Final = 0.05
"""Headroom of a rate at which no request was seen to its end."""
_BROKEN: Final = 0.9
"""Headroom of a rate at which too many requests failed, if the others left more."""


@dataclass(frozen=True, slots=True)
class LevelRun:
    """A load run to make.

    Attributes:
        number: 0 for the first; another number is other requests.
        workload: With the arrivals of this level.
        stop_when: Asked once a second; None measures the shortest window of a saturated engine.
    """

    number: int
    workload: Workload
    stop_when: Callable[[LoadResult], StopReason | None] | None


def requests_per_allowed(limits: tuple[Limit, ...]) -> float:
    """How many requests one over the limit is allowed in, of the limit that allows the fewest."""
    return max(
        (_MEAN_NEEDS if limit.slo.percent is None else 100.0 / (100.0 - limit.slo.percent) for limit in limits),
        default=_MEAN_NEEDS,
    )


def saturating(workload: Workload, limits: tuple[Limit, ...], max_num_seqs: int | None) -> Workload:
    """The workload as a closed loop that keeps the engine full, for as many requests as a probe has."""
    in_flight = SATURATED_BY if max_num_seqs is None else min(2 * max_num_seqs, MOST_TO_SATURATE)
    if not isinstance(workload.arrivals, ClosedLoop) and workload.arrivals.most_in_flight is not None:
        in_flight = workload.arrivals.most_in_flight
    window = _window(workload, min_requests=requests_of(REQUESTS_IN_PROBE, limits))
    return workload.model_copy(
        update={"arrivals": ClosedLoop(kind="closed_loop", in_flight=in_flight), "window": window}
    )


def at_rate(
    workload: Workload, plan: LevelPlan, limits: tuple[Limit, ...], *, served_per_s: float | None = None
) -> Workload:
    """The workload at the rate of a level, as bursty as it is; a closed loop becomes Poisson arrivals.

    Raises:
        ValueError: Its arrivals have times of their own.
    """
    arrivals = workload.arrivals
    if isinstance(arrivals, ConstantRate | PoissonArrivals | GammaArrivals):
        arrivals = arrivals.model_copy(update={"rate_per_s": plan.rate_per_s})
    elif isinstance(arrivals, ClosedLoop):
        arrivals = PoissonArrivals(kind="poisson", rate_per_s=plan.rate_per_s)
    else:
        raise ValueError(f"arrivals of kind {arrivals.kind} have no rate to set")
    most = None if plan.probe else MOST_TIMES * _budget(plan, limits, served_per_s)
    window = _window(workload, min_requests=1, max_requests=most)
    return workload.model_copy(update={"arrivals": arrivals, "window": window})


def _window(workload: Workload, *, min_requests: int, max_requests: int | None = None) -> Window:
    own = workload.window
    limits = [most for most in (own.max_requests, max_requests) if most is not None]
    changed = {
        "min_s": min(own.min_s, SHORTEST_WINDOW_S),
        "min_requests": min_requests,
        "max_requests": min(limits, default=None),
    }
    return own.model_copy(update=changed)


def requests_of(times: tuple[float, int], limits: tuple[Limit, ...]) -> int:
    """So many times one allowed request over the limit, or so many requests, whichever is more."""
    return max(math.ceil(times[0] * requests_per_allowed(limits)), times[1])


def _budget(plan: LevelPlan, limits: tuple[Limit, ...], served_per_s: float | None) -> int:
    """Requests that a verdict is asked of, unless there is headroom left."""
    usual = requests_of(REQUESTS_GOING_UP if plan.goes_up else REQUESTS_IN_VERDICT, limits)
    return max(usual, requests_to_relax(plan.rate_per_s, served_per_s))


class LevelDecision:
    """Says when the load at one rate may stop: at a verdict, or when a probe has seen enough.

    Args:
        aim: What must hold.
        plan: Which rate, and whether a short look is enough.
        served_per_s: What the saturated engine serves, where that is known.
    """

    def __init__(self, aim: Aim, plan: LevelPlan, served_per_s: float | None) -> None:
        self._aim = aim
        self._plan = plan
        self._verdict = StopDecision(
            replace(aim, rules=replace(aim.rules, level=plan.level), incumbent=None, whole=False)
        )
        self._in_probe = requests_of(REQUESTS_IN_PROBE, aim.limits)
        self._to_relax = requests_to_relax(plan.rate_per_s, served_per_s)
        self._budget = _budget(plan, aim.limits, served_per_s)

    def __call__(self, view: LoadResult) -> StopReason | None:
        """HOPELESS as soon as that is so; else nothing before the window is long enough."""
        reason = self._verdict(view)
        if reason is not None and reason.ends_at_once:
            return reason
        ended = int(np.count_nonzero(view.ok))
        if not is_long_enough(view):
            return None
        if self._plan.probe:
            return StopReason.WINDOW if ended >= self._in_probe else None
        if reason is None and ended < self._budget:
            return None
        level = judge_level(self._aim, self._plan, view)
        # An early decision does not stand against a queue that has grown since.
        if reason is not None and level.verdict is Verdict.FEASIBLE and ended >= self._to_relax:
            return reason
        return StopReason.BUDGET if ended >= self._budget and level.headroom < GOES_ON_AT else None


def requests_to_relax(rate_per_s: float, served_per_s: float | None) -> int:
    """Requests that pass until the queue has forgotten how it began; 0 where it is not known what can be served."""
    if served_per_s is None:
        return 0
    if rate_per_s >= served_per_s:
        return MOST_TO_RELAX
    return min(math.ceil(RELAXATIONS / (1.0 - rate_per_s / served_per_s) ** 2), MOST_TO_RELAX)


def settled(level: CapacityLevel, load: LoadResult, served_per_s: float | None) -> CapacityLevel:
    """The level, UNDECIDED where the longest window was too short for a queue to show what it becomes."""
    relaxed = level.requests >= requests_to_relax(level.rate_per_s, served_per_s) and is_long_enough(load)
    if level.verdict is not Verdict.FEASIBLE or relaxed:
        return level
    return replace(level, verdict=Verdict.UNDECIDED)


def is_long_enough(load: LoadResult, latencies: float = LATENCIES_IN_WINDOW) -> bool:
    """Whether the window lasts so many times the P99 in it."""
    return bool(load.ok.any()) and load.window_s >= latencies * float(np.percentile(load.e2e_s, 99.0))


def judge_level(aim: Aim, plan: LevelPlan, load: LoadResult) -> CapacityLevel:
    """The verdict on all limits at one rate, and the headroom of the limit that has least."""
    rules = replace(aim.rules, level=plan.level)
    checked = [check_limit(limit, load, rules) for limit in aim.limits]
    verdict = overall([*checked, check_failures(load, rules)])
    least = max(checked, key=lambda found: math.inf if found.violation is None else found.violation)
    headroom = _NOTHING_LEFT if least.violation is None else math.exp(-least.violation)
    if verdict is Verdict.INFEASIBLE and all(found.verdict is not Verdict.INFEASIBLE for found in checked):
        headroom = min(headroom, _BROKEN)
    return CapacityLevel(plan.rate_per_s, verdict, headroom, len(load.errors), plan.probe, _error(least))


def _error(found: Constraint) -> float:
    """Standard error of the logarithm of what was observed, from its interval; infinite where that is unbounded."""
    if not found.low or not found.high or found.confidence is None or found.high <= found.low:
        return math.inf
    return math.log(found.high / found.low) / (2.0 * NormalDist().inv_cdf((1.0 + found.confidence) / 2.0))
