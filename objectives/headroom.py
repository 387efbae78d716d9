"""Where the headroom of a limit, seen at several arrival rates, is used up.

Headroom is the limit over the latency: above 1 the limit holds. It falls nearly along a straight line as the rate rises
to what can be served: the percentiles of a queue's waits grow as 1 / (served - rate), and so does the time per token of
a batch that grows with the requests in flight. An overloaded rate has a headroom near 0 and not an immense latency,
which tells how long one has watched a queue grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NEAR = 0.35
"""How far from 1 a headroom may lie until it hardly counts for where it crosses 1: the line is one only nearby."""
LEAST_REQUESTS_SHARE = 0.02
STEEPEST, FLATTEST = 30.0, 0.5
"""Of the fall of the headroom for each natural logarithm of the rate; a queue at 97 % of what can be served has 30."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What was seen at one rate.

    Attributes:
        rate_per_s: Requests per second.
        headroom: Limit over observed latency, >= 0, of the limit that has least.
        requests: How many it rests on, > 0.
        error: Standard error of the headroom's logarithm; infinite where the data do not bound it.
    """

    rate_per_s: float
    headroom: float
    requests: float
    error: float = math.inf


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the headroom is 1.

    Attributes:
        rate_per_s: Requests per second.
        fall: Of the headroom for each natural logarithm of the rate, there.
        error: Standard error of the rate's logarithm; infinite where the data do not bound it.
    """

    rate_per_s: float
    fall: float
    error: float


def crossing(seen: Sequence[Headroom], served_per_s: float) -> Crossing | None:
    """The rate at which the headroom falls below 1; None while nothing was seen.

    Each rate tells where a line from it to no headroom at `served_per_s` passes 1; they count by their requests, by how
    near to 1 they are, and by how little an error of the headroom moves what they tell.
    """
    if not seen:
        return None
    best = max((at.rate_per_s for at in seen if at.headroom >= 1.0), default=0.0)
    served = max(served_per_s, 1.02 * best)
    told = [at for at in seen if at.rate_per_s < served and at.headroom > 0.0]
    if not told:
        return None
    rates = np.array([at.rate_per_s for at in told]); y = np.array([at.headroom for at in told]); n = np.array([at.requests for at in told])
    knees = served - (served - rates) / y
    far = np.abs(np.log(y))
    w = n * np.exp(-0.5 * (far / NEAR) ** 2) + 1e-6 * np.exp(-far)
    w /= w.sum()
    middle = float(w @ knees)
    # local line among the seen, ridge toward the pin's slope
    x = np.log(rates / middle)
    chord = min(max(middle / (served - middle), FLATTEST), STEEPEST)
    mx, my = float(w @ x), float(w @ y)
    sxx = float(w @ (x - mx) ** 2); sxy = float(w @ ((x - mx) * (y - my)))
    fall = min(max((-sxy + chord * RIDGE) / (sxx + RIDGE), FLATTEST), STEEPEST)
    rate = middle if len(told) < 2 else middle * math.exp(mx + (my - 1.0) / fall)
    e = np.array([at.error * at.headroom for at in told]); k = np.isfinite(e)
    err = math.sqrt(float((w[k] ** 2) @ (e[k] ** 2))) / max(w[k].sum(), 1e-9) / fall if k.any() else math.inf
    return Crossing(min(rate, served), fall, err)


RIDGE = 1e-3


def falling(seen: Sequence[Headroom]) -> list[Headroom]:
    """The nearest curve that never rises: neighbours that contradict each other become one, by their requests.

    Pool-adjacent-violators (Ayer, Brunk, Ewing, Reid and Silverman, Annals of Mathematical Statistics 1955).
    """
    pooled: list[Headroom] = []
    for at in sorted(seen, key=lambda at: at.rate_per_s):
        pooled.append(at)
        while len(pooled) > 1 and pooled[-2].headroom <= pooled[-1].headroom:
            last, before = pooled.pop(), pooled.pop()
            share = last.requests / (last.requests + before.requests)
            pooled.append(
                Headroom(
                    before.rate_per_s + share * (last.rate_per_s - before.rate_per_s),
                    before.headroom + share * (last.headroom - before.headroom),
                    last.requests + before.requests,
                )
            )
    return pooled
