"""Where the headroom of the limits, seen at several arrival rates, is used up.

Headroom is limit over latency: above 1 the limit holds. It falls towards 0 at the rate at which the engine is saturated
and does so nearly along a straight line: the waits in a queue grow as 1 / (served - rate) (Kingman 1961), and so does
the time for a token in a batch that grows with the requests under way. A line from what was seen to that point
therefore tells from one rate where the headroom will be 1, and best from a rate nearby.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray

_NEAR = 0.35
"""How far from 0 the logarithm of a headroom may lie until it hardly counts: the line is one only nearby."""
_HARDLY = 1e-6
"""What headrooms far from 1 count, where there are no others."""
_WIDE = 0.7
"""The same for how fast it falls."""
_RIDGE = 0.5
"""The slope to the point of saturation counts as much as so many requests would whose rates spread by a factor of e."""
_OF_CHORD = (0.15, 3.0)
"""Least and largest share of that slope that is believed."""
_LEAST_SHARE = 0.01
"""No crossing is looked for below this share of what is served."""
_ABOVE_THE_BEST = 1.02
"""More can be served than the highest rate that kept its limits, if only by so much."""
_BENT = 0.04
"""Error of the crossing's logarithm that comes from the line being none, beside that of chance. From simulated engines
(tests/bench/capacity.py)."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What was seen at one rate.

    Attributes:
        rate_per_s: Requests per second, > 0.
        headroom: Limit over observed latency, of the limit that has least; >= 0.
        requests: How many it rests on, > 0.
        error: Standard error of the headroom's logarithm; infinite where the data do not bound it.
    """

    rate_per_s: float
    headroom: float
    requests: int
    error: float = math.inf


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the headroom is 1.

    Attributes:
        rate_per_s: Requests per second.
        error: Standard error of its logarithm; infinite where the data do not bound it.
    """

    rate_per_s: float
    error: float

    def end(self, deviations: float) -> float | None:
        """The rate so many standard errors above, or below; None when unbounded."""
        return self.rate_per_s * math.exp(deviations * self.error) if math.isfinite(self.error) else None


def crossing(seen: Sequence[Headroom], served_per_s: float) -> Crossing | None:
    """The rate at which the headroom falls below 1; None where nothing tells.

    Rates count by their requests and by how near to 1 their headroom is.

    Args:
        seen: In any order.
        served_per_s: Requests per second of the saturated engine, where the headroom is 0.
    """
    best = max((at.rate_per_s for at in seen if at.headroom >= 1.0), default=0.0)
    served = max(served_per_s, _ABOVE_THE_BEST * best)
    told = [at for at in seen if at.rate_per_s < served and at.headroom > 0.0]
    if not told:
        return None
    rates, headroom = np.array([at.rate_per_s for at in told]), np.array([at.headroom for at in told])
    requests = np.array([float(at.requests) for at in told])
    weights = _weights(headroom, requests, _NEAR)
    middle = max(float(weights @ (served - (served - rates) / headroom)), _LEAST_SHARE * served)
    rate, fall = _line(rates / middle - 1.0, headroom, requests, middle / (served - middle))
    errors = np.array([at.error for at in told]) * headroom
    knee = min(max(middle * (1.0 + rate), _LEAST_SHARE * served), served)
    return Crossing(knee, math.hypot(_error(errors, weights) / fall, _BENT))


def _line(rates: FloatArray, headroom: FloatArray, requests: FloatArray, chord: float) -> tuple[float, float]:
    """Where a line through the points is 1, and how fast it falls there; `chord` is the fall towards saturation."""
    wide = _weights(headroom, requests, _WIDE)
    centre, level = float(wide @ rates), float(wide @ headroom)
    spread = float(wide @ (rates - centre) ** 2)
    bent = float(wide @ ((rates - centre) * (headroom - level)))
    ridge = _RIDGE / float(requests.sum())
    fall = min(max((ridge * chord - bent) / (ridge + spread), _OF_CHORD[0] * chord), _OF_CHORD[1] * chord)
    near = _weights(headroom, requests, _NEAR)
    return float(near @ rates) + (float(near @ headroom) - 1.0) / fall, fall


def _weights(headroom: FloatArray, requests: FloatArray, width: float) -> FloatArray:
    far = np.abs(np.log(headroom))
    counts = requests * (np.exp(-0.5 * (far / width) ** 2) + _HARDLY * np.exp(-far))
    weights: FloatArray = counts / counts.sum()
    return weights


def _error(errors: FloatArray, weights: FloatArray) -> float:
    """Standard error of the weighted mean; of the part whose errors are known, if that weighs anything."""
    known = np.isfinite(errors)
    share = float(weights[known].sum())
    return math.sqrt(float(weights[known] ** 2 @ errors[known] ** 2)) / share if share > 0.5 else math.inf
