"""The highest arrival rate that one engine serves within the limits, found while it lives: one load run for each rate.

Each rate gets requests of its own, lengths and contents: what is common to two rates would make both err to the same
side, and prompts that were seen before would hit the prefix cache.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Protocol

from optimizer.core.measurement import Measurement
from optimizer.core.scoring import Score, Verdict
from optimizer.load import Workload
from optimizer.objectives.capacity import CapacityLevel, CapacityResult, CapacitySearch, LevelPlan, result_of
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity_level import (
    LevelDecision,
    LevelRun,
    at_rate,
    judge_level,
    requests_per_allowed,
    saturating,
    settled,
)

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
        return replace(
            score,
            verdict=self.kept.verdict,
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
    while not search.result(served_per_s).dominated and (plan := rates.next()) is not None:
        rates.tell(await search.look(plan, served_per_s=served_per_s))
    return search.found(served_per_s)


class _Search:
    """The load runs of one search, and the one of them that counts."""

    def __init__(self, aim: Aim, workload: Workload, measure: _Measure) -> None:
        self.levels: list[CapacityLevel] = []
        self._aim = aim
        self._workload = workload
        self._measure = measure
        self._runs = 0
        self._kept: tuple[CapacityLevel, Measurement, float, LevelRun] | None = None

    async def saturate(self, max_num_seqs: int | None) -> float:
        """What the engine serves when more waits than it can take, in requests per second."""
        run = LevelRun(self._runs, saturating(self._workload, self._aim.limits, max_num_seqs), None)
        self._runs += 1
        load = (await self._measure(run)).load
        return max(load.window_requests, 1) / load.window_s

    async def look(self, plan: LevelPlan, *, served_per_s: float | None) -> CapacityLevel:
        """Tries one rate."""
        workload = at_rate(self._workload, plan, self._aim.limits, served_per_s=served_per_s)
        run = LevelRun(self._runs, workload, LevelDecision(self._aim, plan, served_per_s))
        self._runs += 1
        measurement = await self._measure(run)
        level = settled(judge_level(self._aim, plan, measurement.load), measurement.load, served_per_s)
        self.levels.append(level)
        if self._kept is None or _worth(level) > _worth(self._kept[0]):
            self._kept = (level, measurement, plan.level, run)
        return level

    def result(self, served_per_s: float | None) -> CapacityResult:
        """What is known by now."""
        return result_of(self.levels, served_per_s=served_per_s, incumbent_per_s=self._aim.incumbent)

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
