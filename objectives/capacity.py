"""Where to look for the highest arrival rate that keeps every limit, and what has been found of it so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.core.scoring import Verdict
from optimizer.objectives.headroom import Crossing, Headroom, crossing, falling

PROBES_WITHIN = 1.10
MOST_PROBES = 10
MOST_VERDICTS = 12
BELOW = 0.015
NEAR_ENOUGH = 0.02
FIRST_STEP, LARGEST_STEP = 1.6, 4.0
INSIDE = 0.2
LOWEST = 1.0 / 64.0
OVERLOADED = 0.5
GO_UP_FOR = 130
BROKEN = 0.9


@dataclass(frozen=True, slots=True)
class LevelPlan:
    rate_per_s: float
    level: float
    probe: bool


@dataclass(frozen=True, slots=True)
class CapacityLevel:
    rate_per_s: float
    verdict: Verdict
    headroom: float
    requests: int
    probe: bool
    served_per_s: float = math.inf
    error: float = math.inf


@dataclass(frozen=True, slots=True)
class CapacityResult:
    rate_per_s: float
    low_per_s: float | None
    high_per_s: float | None
    knee: Crossing | None
    levels: tuple[CapacityLevel, ...]
    dominated: bool = False

    @property
    def requests(self) -> int:
        return sum(level.requests for level in self.levels)


class CapacitySearch:
    def __init__(self, served_per_s, *, level=0.05, incumbent_per_s=None, unit=100) -> None:
        self._served = served_per_s
        self._level = level
        self._incumbent = incumbent_per_s
        self._unit = unit
        self._levels: list[CapacityLevel] = []
        self._share = 0.5

    def next(self):
        if self._dominated:
            return None
        verdicts = [f for f in self._levels if not f.probe]
        if not verdicts and len(self._levels) < MOST_PROBES:
            rate = self._probe_rate()
            if rate is not None:
                return LevelPlan(rate, 0.01, True)
        if len(verdicts) >= MOST_VERDICTS:
            return None
        low, knee = self._low, self._knee
        aim = knee.rate_per_s * (1 - BELOW)
        if low is not None:
            spent = sum(f.requests for f in self._levels)
            if spent >= max(GO_UP_FOR * self._unit, 4500):
                return None
            above = [f for f in self._levels if f.headroom < 1 and f.requests >= 5 * self._unit and f.rate_per_s > low]
            high = min((f.rate_per_s for f in above), default=None)
            if high is None or high > low * 1.07:
                up = max(min(knee.rate_per_s * UP, low * 1.05), low * 1.025)
            else:
                up = min(aim, math.sqrt(low * high))
                if up <= low * (1 + NEAR_ENOUGH): return None
            if any(abs(up/f.rate_per_s-1)<.012 for f in verdicts): return None
            return LevelPlan(up, self._level * self._share, False)
        if verdicts:
            fails = len(verdicts)
            aim = min(aim, min(f.rate_per_s for f in verdicts) * (1 - min(DOWN * 2 ** (fails - 1), 0.5)))
            if aim < LOWEST * self._served:
                return None
        return LevelPlan(aim, self._level * 0.5 ** (len(verdicts) + 1), False)

    def tell(self, plan, level: CapacityLevel):
        self._levels.append(level)
        if level.verdict is Verdict.FEASIBLE and not plan.probe:
            self._share = plan.level / self._level

    def result(self):
        low, high, knee = self._low, self._high, self._knee
        return CapacityResult(low or 0.0, low, high, knee, tuple(self._levels), self._dominated)

    @property
    def _low(self):
        return max((f.rate_per_s for f in self._levels if f.verdict is Verdict.FEASIBLE and not f.probe), default=None)

    @property
    def _high(self):
        low = self._low or 0.0
        return min((f.rate_per_s for f in self._levels if f.verdict is Verdict.INFEASIBLE and f.rate_per_s > low), default=None)

    @property
    def _dominated(self):
        high = self._high
        return self._incumbent is not None and high is not None and high <= self._incumbent

    @property
    def _knee(self):
        return crossing(self._seen(), self._served)

    def _seen(self):
        out = []
        for f in self._levels:
            y = f.headroom
            if f.verdict is Verdict.INFEASIBLE: y = min(y, 0.999)
            elif f.verdict is Verdict.FEASIBLE and not f.probe: y = max(y, 1.0)
            out.append(Headroom(f.rate_per_s, y, max(f.requests, 1), f.error))
        return out

    def _probe_rate(self):
        if not self._levels:
            return self._served * FIRST
        probes = self._levels
        knee = self._knee
        good = [f for f in probes if f.headroom >= 1]
        if not good:
            return min(f.rate_per_s for f in probes) * (0.85 if len(probes) < 2 else 0.7 if len(probes) < 4 else .5)
        near = max(good, key=lambda f: f.rate_per_s)
        if len(probes) >= 2 and abs(knee.rate_per_s / near.rate_per_s - 1) <= PROBE_NEAR:
            return None
        return knee.rate_per_s*(1-BELOW)
FIRST = .85
PROBE_NEAR = .04
DOWN = .015
UP = 1.0
