"""Where to look for the capacity when a model of the engine tells where the knee should be.

Short looks come near to the knee, each at where the model and all looks so far have it. Then a verdict is asked for a
little below it, with most of the requests. Where it is not FEASIBLE the next rate is lower; where it is, a higher rate
is tried only if the knee has moved away.
"""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.core.scoring import Verdict
from optimizer.objectives.capacity import LOWEST, PROBE_LEVEL, CapacityLevel, LevelPlan, next_level
from optimizer.objectives.headroom import Crossing

MOST_PROBES = 5
MOST_VERDICTS = 6
_FIRST = 0.85
"""Share of what is served at which the first probe looks: the model has seen the saturated engine alone."""
_NEAR = 0.03
"""Probes end when one was so close to where a verdict would be asked for."""
_KNOWN = 0.025
"""Or two, while the knee is not known so well: standard error of its logarithm."""
_BELOW = 0.013
"""A verdict is asked for so much below the knee."""
_DOWN, _LARGEST_DOWN = 0.01, 0.5
"""Without a FEASIBLE verdict the next rate is lower by at least this share, which doubles each time."""
_MOVED = 0.03
"""A FEASIBLE rate so far below the knee is not the last."""


class GuidedSearch:
    """Says which rate to try next.

    Args:
        served_per_s: What the saturated engine serves, > 0.
        level: Largest chance that any FEASIBLE verdict is wrong.
        earlier: Levels that were tried before what is served was known.
    """

    def __init__(self, served_per_s: float, *, level: float, earlier: Sequence[CapacityLevel] = ()) -> None:
        self._served_per_s = served_per_s
        self._level = level
        self._levels = list(earlier)
        self._earlier = len(self._levels)

    def tell(self, level: CapacityLevel) -> None:
        """What was found at a rate."""
        self._levels.append(level)

    def next(self, knee: Crossing) -> LevelPlan | None:
        """The rate to try next; None when the capacity is known, or no more may be spent on it.

        Args:
            knee: Where the limits seem to be used up, by all that is known.
        """
        floor = LOWEST * self._served_per_s
        aim = max(knee.rate_per_s * (1.0 - _BELOW), floor)
        probes = [found for found in self._levels if found.probe]
        if not probes:
            return LevelPlan(_FIRST * self._served_per_s, PROBE_LEVEL, probe=True)
        verdicts = [found for found in self._levels if not found.probe]
        asked = [found for found in self._levels[self._earlier :] if not found.probe]
        if not asked and len(probes) < MOST_PROBES and _is_far(probes, aim, knee):
            return LevelPlan(aim, PROBE_LEVEL, probe=True)
        if len(verdicts) >= MOST_VERDICTS:
            return None
        level, in_vain = next_level(verdicts, self._level), [at.rate_per_s for at in asked if not _is_feasible(at)]
        feasible = max((at.rate_per_s for at in verdicts if _is_feasible(at)), default=None)
        if feasible is not None:
            done = in_vain or aim <= feasible * (1.0 + _MOVED - _BELOW)
            return None if done else LevelPlan(aim, level, probe=False, goes_up=True)
        if in_vain:
            if min(in_vain) <= floor:
                return None
            down = min(_DOWN * 2.0 ** (len(in_vain) - 1), _LARGEST_DOWN)
            aim = max(min(aim, min(in_vain) * (1.0 - down)), floor)
        return LevelPlan(aim, level, probe=False)


def _is_far(probes: Sequence[CapacityLevel], aim_per_s: float, knee: Crossing) -> bool:
    near = [found for found in probes if abs(found.rate_per_s / aim_per_s - 1.0) <= _NEAR]
    return not near or (len(near) == 1 and knee.error > _KNOWN)


def _is_feasible(found: CapacityLevel) -> bool:
    return found.verdict is Verdict.FEASIBLE
