"""At which rate the first of several limits is used up, where how much is left can be computed but costs time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optimizer.core.measurement import FloatArray

_FIRST = 0.9
_LOWEST, _HIGHEST = 1.0 / 64.0, 1.1
"""Rates are looked for between these shares of what is served: the short run that tells that may have had long answers.
"""
_WITHIN = 1e-3
_STEPS = (0.03, 0.7)
"""Least and largest step, in the logarithm of the rate, while the limits are used up nowhere, or everywhere."""
_USUAL_SLOPE = 6.0
_OFF_THE_ENDS = 0.05
_HALVES_AFTER = 6
_APART = 5e-3
"""Two rates tell a slope when they are so far apart."""
_LEAST_SLOPE = 0.3


def first_used_up(over: Callable[[float], FloatArray], served_per_s: float) -> tuple[float, int, float]:
    """Where the largest of some functions that rise with the rate is 0.

    Args:
        over: At a rate, the logarithm of latency over limit, for each limit.
        served_per_s: What the saturated engine serves.

    Returns:
        The rate, which of the functions it is, and that one's slope over the logarithm of the rate.
    """
    rate, low, high = (share * served_per_s for share in (_FIRST, _LOWEST, _HIGHEST))
    seen: list[tuple[float, FloatArray]] = []
    while high / low >= 1.0 + _WITHIN:
        values = over(rate)
        seen.append((rate, values))
        low, high = (rate, high) if values.max() <= 0.0 else (low, rate)
        rate = min(max(_next(seen), low * (1.0 + _WITHIN / 4.0)), high)
    rate = math.sqrt(low * high)
    near = sorted(seen, key=lambda at: abs(math.log(at[0] / rate)))
    number = int(near[0][1].argmax())
    other = next((at for at in near if abs(math.log(at[0] / near[0][0])) > _APART), near[0])
    apart = math.log(other[0] / near[0][0])
    slope = float(other[1][number] - near[0][1][number]) / apart if apart else _USUAL_SLOPE
    return rate, number, max(slope, _LEAST_SLOPE)


def _next(seen: Sequence[tuple[float, FloatArray]]) -> float:
    """By regula falsi between the nearest rates on either side, kept off both, and by halves if that takes long."""
    below = max(((at, float(values.max())) for at, values in seen if values.max() <= 0.0), default=None)
    above = min(((at, float(values.max())) for at, values in seen if values.max() > 0.0), default=None)
    if below is None or above is None:
        at, value = above or below or (1.0, 0.0)
        step = min(max(abs(value) / _USUAL_SLOPE, _STEPS[0]), _STEPS[1])
        return at * math.exp(-math.copysign(step, value) if value else step)
    share = min(max(below[1] / (below[1] - above[1]), _OFF_THE_ENDS), 1.0 - _OFF_THE_ENDS)
    if len(seen) > _HALVES_AFTER:
        share = 0.5
    return float(below[0] * (above[0] / below[0]) ** share)
