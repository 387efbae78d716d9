"""The highest arrival rate that one engine serves within the limits, found while it lives: one load run for each rate.

Each rate gets requests of its own, lengths and contents: what is common to two rates would make both err to the same
side, and prompts that were seen before would hit the prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Protocol, TypeVar

from optimizer.core.measurement import LoadResult, Measurement
from optimizer.core.scoring import Score, Verdict
from optimizer.load import Workload
from optimizer.load.failure import ClientSpoiled
from optimizer.objectives.capacity import CapacityLevel, CapacityResult, CapacitySearch, LevelPlan, result_of
from optimizer.objectives.guided import GuidedSearch
from optimizer.objectives.headroom import Crossing
from optimizer.objectives.score import on_the_side_of
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity_level import LevelRun, at_rate, requests_per_allowed, saturating
from optimizer.tuning.capacity_shadow import EngineShadow
from optimizer.tuning.capacity_verdict import AloneDecision, LookDecision, RateDecision, ShadowDecision

_CONFIDENCE: Final = 0.9
"""Of the interval beside a capacity, two-sided."""


@dataclass(frozen=True, slots=True, eq=False)
class CapacityFound:
    """What the search came to.

    Attributes:
        result: The rates.
        measurement: Of the highest rate that is FEASIBLE; where none is, of the one whose limits were nearest to hold.
        kept: That level.
        level: Error level of its verdict.
        run: Its load run.
    """

    result: CapacityResult
    measurement: Measurement
    kept: CapacityLevel
    level: float
    run: LevelRun

    @property
    def rate_per_s(self) -> float:
        """Highest rate that is FEASIBLE; without one the lowest that was tried, or what was served of it, if less."""
        if self.result.rate_per_s is not None:
            return self.result.rate_per_s
        load = self.measurement.load
        tried = min(level.rate_per_s for level in self.result.levels)
        return min(tried, load.window_requests / load.window_s) if load.window_requests else tried

    def told(self, score: Score) -> Score:
        """The score of the measurement, with what the other rates tell: the verdict, and where the capacity lies.

        The interval reaches from the highest feasible rate to where the limits are used up by the estimate's own
        interval.
        """
        knee, rate = self.result.knee, self.result.rate_per_s
        deviations = NormalDist().inv_cdf((1.0 + _CONFIDENCE) / 2.0)
        high = None if knee is None or rate is None else knee.end(deviations)
        constraints = score.constraints
        if self.kept.verdict is Verdict.FEASIBLE:
            constraints = tuple(
                replace(found, verdict=Verdict.FEASIBLE, violation=on_the_side_of(Verdict.FEASIBLE, found.violation))
                if found.violation is not None
                else found
                for found in constraints
            )
        return replace(
            score,
            verdict=self.kept.verdict,
            constraints=constraints,
            low=rate,
            high=None if high is None or rate is None else max(high, rate),
            confidence=None if rate is None else _CONFIDENCE,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for a person."""
        result = self.result
        low, high = ("none" if at is None else f"{at:.4g}" for at in (result.rate_per_s, result.infeasible_per_s))
        knee = "" if result.knee is None else f", limits used up at about {result.knee.rate_per_s:.4g}"
        served = "" if result.served_per_s is None else f", saturated at {result.served_per_s:.4g}"
        tried = ", ".join(_level_words(level) for level in result.levels)
        return (
            f"capacity: highest feasible rate {low}, lowest infeasible above it {high}{knee}{served} requests/s",
            f"{result.requests:,} requests at {len(result.levels)} rates: {tried}",
        )


_Decision = TypeVar("_Decision", bound=RateDecision | None)


class _Measure(Protocol):
    def __call__(self, run: LevelRun) -> Awaitable[Measurement]:
        """Makes one run on the live engine."""


async def find_capacity(
    aim: Aim, workload: Workload, measure: _Measure, *, max_num_seqs: int | None = None
) -> CapacityFound:
    """Search for the capacity of the engine that `measure` loads.

    Where there is a best capacity so far, that rate comes first: a setting that is INFEASIBLE there is given up.

    Args:
        aim: Limits in milliseconds, error level, and the best capacity so far.
        workload: The traffic. Its longest window and largest number of requests hold for each rate.
        measure: Makes one run.
        max_num_seqs: The engine's, where it is known.
    """
    search = _Search(aim, workload, measure)
    if aim.incumbent is not None:
        await search.look(LevelPlan(aim.incumbent, aim.rules.level / 2.0, probe=False), served_per_s=None)
        if search.result(None).dominated:
            return search.found(None)
    served_per_s = await search.saturate(max_num_seqs)
    rates = CapacitySearch(
        served_per_s,
        level=aim.rules.level,
        requests_per_allowed=requests_per_allowed(aim.limits),
        earlier=search.levels,
    )
    guided = GuidedSearch(served_per_s, level=aim.rules.level, earlier=search.levels)
    while not search.result(served_per_s).dominated:
        # Only where to ask for a verdict is told from a long run of the model.
        plan = rates.next()
        for roughly in (True, False):
            if (knee := await search.knee(served_per_s, roughly=roughly)) is not None:
                plan = guided.next(knee)
            if knee is None or (plan is not None and plan.probe):
                break
        if plan is None:
            break
        level = await search.look(plan, served_per_s=served_per_s)
        rates.tell(level)
        guided.tell(level)
    return search.found(served_per_s)


class _Search:
    """The load runs of one search, and the one of them that counts."""

    def __init__(self, aim: Aim, workload: Workload, measure: _Measure) -> None:
        self.levels: list[CapacityLevel] = []
        self._aim = aim
        self._workload = workload
        self._measure = measure
        self._runs = 0
        self._shadow: EngineShadow | None = None
        self._before_model: list[tuple[LoadResult, float, int]] = []
        self._knee: Crossing | None = None
        self._knee_of: tuple[int, bool] | None = None
        self._kept: tuple[CapacityLevel, Measurement, float, LevelRun] | None = None

    async def saturate(self, max_num_seqs: int | None) -> float:
        """What the engine serves when more waits than it can take, in requests per second."""
        workload = saturating(self._workload, self._aim.limits, max_num_seqs)
        _, _, measurement = await self._run(workload, lambda number: None)
        load = measurement.load
        served_per_s = max(load.window_requests, 1) / load.window_s
        in_flight = workload.arrivals.most_in_flight or 1
        self._shadow = EngineShadow.of(self._aim.limits, self._workload, load, in_flight, max_num_seqs)
        for earlier, rate_per_s, number in self._before_model:
            if self._shadow is not None:
                self._shadow.learn(earlier, rate_per_s, served_per_s, number)
        return served_per_s

    async def knee(self, served_per_s: float, *, roughly: bool) -> Crossing | None:
        """Where the limits are used up, by a model beside the engine; None without one."""
        told = (self._runs, roughly)
        if self._shadow is not None and told != self._knee_of:
            # In a thread: some seconds of computing, in which the study's other tasks go on.
            self._knee, self._knee_of = await asyncio.to_thread(self._shadow.knee, served_per_s, roughly=roughly), told
        return self._knee

    async def look(self, plan: LevelPlan, *, served_per_s: float | None) -> CapacityLevel:
        """Tries one rate."""
        workload = at_rate(self._workload, plan, self._aim.limits, served_per_s=served_per_s)
        decision_of = await self._decisions(plan, served_per_s)
        run, decision, measurement = await self._run(workload, decision_of)
        level = decision.level(measurement.load)
        if self._shadow is None or served_per_s is None:
            self._before_model.append((measurement.load, plan.rate_per_s, run.number))
        else:
            self._shadow.learn(measurement.load, plan.rate_per_s, served_per_s, run.number)
            if isinstance(decision, ShadowDecision) and level.verdict is Verdict.FEASIBLE:
                level = await self._unless_beyond_the_knee(level, served_per_s)
        self.levels.append(level)
        if self._kept is None or _worth(level) > _worth(self._kept[0]):
            self._kept = (level, measurement, plan.level, run)
        return level

    async def _unless_beyond_the_knee(self, level: CapacityLevel, served_per_s: float) -> CapacityLevel:
        """FEASIBLE rests on a model from before the load; it does not stand where the model with the load denies it."""
        knee = await self.knee(served_per_s, roughly=False)
        denied = knee is not None and knee.rate_per_s < level.rate_per_s
        return replace(level, verdict=Verdict.UNDECIDED) if denied else level

    async def _decisions(self, plan: LevelPlan, served_per_s: float | None) -> Callable[[int], RateDecision]:
        """What makes the decision of a load run with some number."""
        aim, shadow = self._aim, self._shadow
        if shadow is None or served_per_s is None or self._knee is None:
            return lambda number: AloneDecision(aim, plan, served_per_s)
        if plan.probe:
            first = not any(level.probe for level in self.levels)
            return lambda number: LookDecision(aim, plan, first=first)
        expected = await asyncio.to_thread(shadow.expectation, plan.rate_per_s, aim.rules.tolerance)
        if expected is None:
            return lambda number: AloneDecision(aim, plan, served_per_s)
        return lambda number: ShadowDecision(aim, plan, served_per_s, shadow, expected, number)

    async def _run(
        self, workload: Workload, decision_of: Callable[[int], _Decision]
    ) -> tuple[LevelRun, _Decision, Measurement]:
        """One load run; once more with other requests where the client spoiled it, which may pass."""
        for last in (False, True):
            decision = decision_of(self._runs)
            run = LevelRun(self._runs, workload, decision)
            self._runs += 1
            try:
                return run, decision, await self._measure(run)
            except ClientSpoiled:
                if last:
                    raise
        raise AssertionError("the last try returns or raises")

    def result(self, served_per_s: float | None) -> CapacityResult:
        """What is known by now."""
        result = result_of(self.levels, served_per_s=served_per_s, incumbent_per_s=self._aim.incumbent)
        return result if self._knee is None else replace(result, knee=self._knee)

    def found(self, served_per_s: float | None) -> CapacityFound:
        """What the search came to."""
        if self._kept is None:
            raise AssertionError("a search tries at least one rate")
        level, measurement, error_level, run = self._kept
        return CapacityFound(self.result(served_per_s), measurement, level, error_level, run)


def _worth(level: CapacityLevel) -> tuple[bool, bool, bool, float]:
    """FEASIBLE first, of them the highest rate; then verdicts, those that are open, and the most headroom."""
    feasible = level.verdict is Verdict.FEASIBLE and not level.probe
    open_still = level.verdict is not Verdict.INFEASIBLE
    return feasible, not level.probe, open_still, level.rate_per_s if feasible else level.headroom


def _level_words(level: CapacityLevel) -> str:
    found = "looked at" if level.probe and level.verdict is not Verdict.INFEASIBLE else str(level.verdict)
    return f"{level.rate_per_s:.4g} {found} ({level.headroom:.2f} x headroom, {level.requests:,})"
