"""Where to look for the highest arrival rate that keeps every limit, and what has been found of it so far.

It begins from what the saturated engine serves, above which no rate can be. Probes, short looks, come near to the rate
at which the headroom of the limits is used up (see `headroom`). Just below it a verdict is asked for; the rate moves
down until it is FEASIBLE, and from there up while there seems to be room.

The first verdict may be wrong with half the level, and each time that one is not FEASIBLE those that follow have half
of what it had. FEASIBLE ones in a row go up and share what one has: where the first wrong one is called FEASIBLE, the
rates above it are infeasible too, so that it alone decides whether the row errs. Together they err with at most the
level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.core.scoring import Verdict
from optimizer.objectives.headroom import Crossing, Headroom, crossing

MOST_PROBES = 10
MOST_VERDICTS = 12
PROBE_LEVEL = 0.01
"""Error level at which a probe ends as hopeless."""
LOWEST = 1.0 / 64.0
"""No rate below this share of what the saturated engine serves is tried."""
_NEAR_THE_FLOOR = 2.0
"""Rates up to so many times the floor tell what holds there."""
_FIRST = 0.85
"""Share of what is served at which the first probe looks."""
_NEAR = 0.04
"""Probes end when one kept its limits this close to where the headroom seems to end."""
_DOWN_IN_VAIN = (0.85, 0.7, 0.5)
"""While no probe keeps its limits each rate is this share of the lowest so far; the last is for all that follow."""
_BELOW = 0.015
"""A verdict is asked for so much below the crossing: closer, either would be right and take thousands of requests."""
_FIRST_BELOW = 0.03
"""The same for the first verdict: from a FEASIBLE rate upwards the error need not be shared out any further."""
_DOWN, _LARGEST_DOWN = 0.015, 0.5
"""Without a FEASIBLE verdict the next rate is lower by at least this share, which doubles each time."""
_NEAR_ENOUGH = 0.02
"""A FEASIBLE rate so close to the best that can be asked for is the last."""
_UP_BY = (0.025, 0.05)
"""Going up from a FEASIBLE rate is in steps between these shares while nothing tells that it is too high."""
_SEEN_ABOVE = 1.07
"""A rate without headroom tells where to stop only within this factor of the FEASIBLE one."""
_SAME = 0.012
"""A rate so near to one of which a verdict was asked would tell the same."""
_ENOUGH_TO_TELL = 5
_GO_UP_UNTIL = 130
_GO_UP_AT_LEAST_UNTIL = 4500
"""Requests after which a search that has a FEASIBLE rate asks for no higher one: the larger of these requests and of so
many times one allowed request over the limit."""
_BROKEN = 0.999
_KEPT = 1.0
"""Headroom on the side of 1 that a verdict says, though what was observed lies within the tolerance on the other."""


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """A rate to try next.

    Attributes:
        rate_per_s: Requests per second.
        level: Error level of a verdict that is reached there.
        probe: Whether a short look is enough; else the load goes on for a verdict.
        goes_up: Whether a lower rate is known to be FEASIBLE, so that less may be spent on this one.
    """

    rate_per_s: float
    level: float
    probe: bool
    goes_up: bool = False


@dataclass(frozen=True, slots=True)
class CapacityLevel:
    """A rate that was tried.

    Attributes:
        rate_per_s: Requests per second.
        verdict: Of all limits together.
        headroom: Limit over observed latency, of the limit that has least.
        requests: Requests that were counted.
        probe: Whether it was only a short look.
        error: Standard error of the headroom's logarithm; infinite where the data do not bound it.
    """

    rate_per_s: float
    verdict: Verdict
    headroom: float
    requests: int
    probe: bool
    error: float = math.inf


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """What is known of the capacity.

    Attributes:
        rate_per_s: Highest rate that is FEASIBLE; None when none was found.
        infeasible_per_s: Lowest rate above it that is INFEASIBLE; None when none is.
        knee: Estimate of where the headroom is used up.
        served_per_s: What the saturated engine serves; None when the search ended before that was asked.
        levels: In the order in which they were tried.
        dominated: The search was given up, since a rate up to the incumbent's is INFEASIBLE.
    """

    rate_per_s: float | None
    infeasible_per_s: float | None
    knee: Crossing | None
    served_per_s: float | None
    levels: tuple[CapacityLevel, ...]
    dominated: bool = False

    @property
    def requests(self) -> int:
        """Counted at all levels together."""
        return sum(level.requests for level in self.levels)


class CapacitySearch:
    """Says which rate to try next, from what was found so far.

    Args:
        served_per_s: What the saturated engine serves, > 0.
        level: Largest chance that any FEASIBLE verdict is wrong.
        requests_per_allowed: How many requests one over the limit is allowed in: 100 for a P99.
        earlier: Levels that were tried before what is served was known.
    """

    def __init__(
        self,
        served_per_s: float,
        *,
        level: float = 0.05,
        requests_per_allowed: float = 100.0,
        earlier: Sequence[CapacityLevel] = (),
    ) -> None:
        if not (served_per_s > 0.0 and math.isfinite(served_per_s)):
            raise ValueError(f"{served_per_s} requests per second are no rate")
        self._served_per_s = served_per_s
        self._level = level
        self._unit = requests_per_allowed
        self._levels = list(earlier)

    def next(self) -> LevelPlan | None:
        """The rate to try next; None when the capacity is known, or no more may be spent on it."""
        rate = self._probe_rate()
        if rate is not None:
            return LevelPlan(rate, PROBE_LEVEL, probe=True)
        if len(self._verdicts) >= MOST_VERDICTS:
            return None
        low = _highest_feasible(self._levels)
        if low is not None:
            rate = self._rate_above(low.rate_per_s)
            return None if rate is None else LevelPlan(rate, self._next_level, probe=False, goes_up=True)
        rate = max(self._rate_below(), self._floor_per_s)
        if rate == self._floor_per_s and self._is_told_at_the_floor:
            return None
        return LevelPlan(rate, self._next_level, probe=False)

    def tell(self, level: CapacityLevel) -> None:
        """What was found at a rate."""
        self._levels.append(level)

    def result(self, *, incumbent_per_s: float | None = None) -> CapacityResult:
        """What is known by now."""
        return result_of(self._levels, served_per_s=self._served_per_s, incumbent_per_s=incumbent_per_s)

    @property
    def _floor_per_s(self) -> float:
        return LOWEST * self._served_per_s

    @property
    def _is_told_at_the_floor(self) -> bool:
        """Whether a rate near the floor is known to be INFEASIBLE, or a verdict was asked for there."""
        low = [found for found in self._levels if found.rate_per_s <= _NEAR_THE_FLOOR * self._floor_per_s]
        return any(not found.probe or found.verdict is Verdict.INFEASIBLE for found in low)

    @property
    def _next_level(self) -> float:
        """Error level of the next verdict."""
        return next_level(self._verdicts, self._level)

    @property
    def _verdicts(self) -> list[CapacityLevel]:
        return [found for found in self._levels if not found.probe]

    def _probe_rate(self) -> float | None:
        """Where to look shortly; None when verdicts are due."""
        probes = [found for found in self._levels if found.probe]
        if len(probes) < len(self._levels) and (probes or _highest_feasible(self._levels) is not None):
            return None
        if len(probes) >= MOST_PROBES:
            return None
        if not self._levels:
            return _FIRST * self._served_per_s
        kept = [found.rate_per_s for found in self._levels if found.headroom >= 1.0]
        if not kept:
            lowest = min(found.rate_per_s for found in self._levels)
            rate = min(lowest, self._served_per_s) * _DOWN_IN_VAIN[min(len(self._levels), len(_DOWN_IN_VAIN)) - 1]
            return rate if rate >= self._floor_per_s else None
        knee = self._knee_per_s
        if len(self._levels) > 1 and abs(knee / max(kept) - 1.0) <= _NEAR:
            return None
        return max(knee * (1.0 - _BELOW), self._floor_per_s)

    def _rate_below(self) -> float:
        """Just below the crossing, and lower than every rate of which a verdict was asked in vain."""
        lowest = min(self._levels, key=lambda found: found.rate_per_s)
        rate, in_vain = lowest.rate_per_s * (1.0 - _LARGEST_DOWN), [found.rate_per_s for found in self._verdicts]
        if any(found.headroom >= 1.0 for found in self._levels):
            rate = max(self._knee_per_s * (1.0 - _FIRST_BELOW), rate)
        elif not in_vain and lowest.verdict is not Verdict.INFEASIBLE:
            rate = lowest.rate_per_s
        if in_vain:
            rate = min(rate, min(in_vain) * (1.0 - min(_DOWN * 2.0 ** (len(in_vain) - 1), _LARGEST_DOWN)))
        return rate

    def _rate_above(self, low_per_s: float) -> float | None:
        """Where a verdict may still raise the capacity; None when that is not worth it."""
        if sum(found.requests for found in self._levels) >= max(_GO_UP_UNTIL * self._unit, _GO_UP_AT_LEAST_UNTIL):
            return None
        knee = self._knee_per_s
        without = [
            found.rate_per_s
            for found in self._levels
            if found.headroom < 1.0 and found.rate_per_s > low_per_s and found.requests >= _ENOUGH_TO_TELL * self._unit
        ]
        high = min(without, default=math.inf)
        if high > low_per_s * _SEEN_ABOVE:
            rate = max(min(knee, low_per_s * (1.0 + _UP_BY[1])), low_per_s * (1.0 + _UP_BY[0]))
        else:
            rate = min(knee * (1.0 - _BELOW), math.sqrt(low_per_s * high))
            if rate <= low_per_s * (1.0 + _NEAR_ENOUGH):
                return None
        if any(abs(rate / found.rate_per_s - 1.0) < _SAME for found in self._verdicts):
            return None
        return rate

    @property
    def _knee_per_s(self) -> float:
        """Where the headroom seems to be used up; the lowest rate that was tried where nothing tells."""
        knee = crossing(_headrooms(self._levels), self._served_per_s)
        lowest = min((found.rate_per_s for found in self._levels), default=_FIRST * self._served_per_s)
        return lowest if knee is None else knee.rate_per_s


def next_level(verdicts: Sequence[CapacityLevel], level: float) -> float:
    """Error level of the next verdict: half of the level for the first, and half again after each in vain."""
    return level * 0.5 ** (1 + sum(found.verdict is not Verdict.FEASIBLE for found in verdicts))


def result_of(
    levels: Sequence[CapacityLevel], *, served_per_s: float | None = None, incumbent_per_s: float | None = None
) -> CapacityResult:
    """What some levels tell.

    Args:
        levels: In the order in which they were tried.
        served_per_s: What the saturated engine serves, where that is known.
        incumbent_per_s: Best capacity so far; a setting that is INFEASIBLE at or below it cannot beat it.
    """
    low = _highest_feasible(levels)
    rate = None if low is None else low.rate_per_s
    broken = [found.rate_per_s for found in levels if found.verdict is Verdict.INFEASIBLE]
    high = min((at for at in broken if rate is None or at > rate), default=None)
    knee = None if served_per_s is None else crossing(_headrooms(levels), served_per_s)
    beats = incumbent_per_s is None or (rate is not None and rate > incumbent_per_s)
    dominated = not beats and high is not None and incumbent_per_s is not None and high <= incumbent_per_s
    return CapacityResult(rate, high, knee, served_per_s, tuple(levels), dominated)


def _highest_feasible(levels: Sequence[CapacityLevel]) -> CapacityLevel | None:
    feasible = [found for found in levels if found.verdict is Verdict.FEASIBLE and not found.probe]
    return max(feasible, key=lambda found: found.rate_per_s, default=None)


def _headrooms(levels: Sequence[CapacityLevel]) -> list[Headroom]:
    return [
        Headroom(found.rate_per_s, _on_the_side_of(found), found.requests, found.error)
        for found in levels
        if found.requests > 0
    ]


def _on_the_side_of(found: CapacityLevel) -> float:
    if found.verdict is Verdict.INFEASIBLE:
        return min(found.headroom, _BROKEN)
    if found.verdict is Verdict.FEASIBLE and not found.probe:
        return max(found.headroom, _KEPT)
    return found.headroom
