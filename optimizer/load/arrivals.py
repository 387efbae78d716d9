"""When requests of an open loop are due: drawn from the study's seed, the same for every configuration.

The times are fixed before anything is sent and know nothing of the answers, so that an engine that falls behind cannot
slow its own load down (no coordinated omission).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import sqrt

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.load.arrival_process import (
    ArrivalProcess,
    ClosedLoop,
    ConstantRate,
    GammaArrivals,
    PoissonArrivals,
    RampArrivals,
    TraceArrivals,
)
from optimizer.load.seeds import Stream, generator

_AT_A_TIME = 1024
"""Gaps are drawn in blocks: a draw of one costs as much as one of a hundred."""


def window_offsets_s(arrivals: ArrivalProcess, study_seed: int, recorded_s: FloatArray | None) -> Iterator[float]:
    """When the window's requests are due, in seconds after it opens: element n is request n's.

    Without an end, save for a recorded trace that takes no time and so cannot be repeated.

    Args:
        arrivals: An open loop.
        study_seed: The study's.
        recorded_s: For arrivals of kind trace, the recorded times after the first; shape (n,), never falling.

    Raises:
        ValueError: The arrivals are a closed loop, or a trace without times.
    """
    return _offsets_s(arrivals, generator(study_seed, Stream.ARRIVALS), recorded_s)


def ramp_offsets_s(arrivals: ArrivalProcess, study_seed: int, recorded_s: FloatArray | None) -> Iterator[float]:
    """When requests before the window are due, in seconds after the load starts: as the window's first.

    A rate that climbs has the value from which it climbs.

    Raises:
        ValueError: As `window_offsets_s`.
    """
    rng = generator(study_seed, Stream.RAMP_ARRIVALS)
    if isinstance(arrivals, RampArrivals):
        return _sums(arrivals.from_rate_per_s, 1.0, rng)
    return _offsets_s(arrivals, rng, recorded_s)


def _offsets_s(arrivals: ArrivalProcess, rng: np.random.Generator, recorded_s: FloatArray | None) -> Iterator[float]:
    match arrivals:
        case ConstantRate():
            return (number / arrivals.rate_per_s for number in count())
        case PoissonArrivals():
            return _sums(arrivals.rate_per_s, 1.0, rng)
        case GammaArrivals():
            return _sums(arrivals.rate_per_s, arrivals.burstiness, rng)
        case RampArrivals():
            return (_ramp_time_s(arrivals, events) for events in _sums(1.0, 1.0, rng))
        case TraceArrivals() if recorded_s is not None:
            return _replayed(recorded_s / arrivals.speed)
        case TraceArrivals():
            raise ValueError("arrivals of kind trace need recorded times")
        case ClosedLoop():
            raise ValueError("a closed loop has no arrival times: its users send when their last answer has ended")


def _sums(rate_per_s: float, shape: float, rng: np.random.Generator) -> Iterator[float]:
    """Sums of gamma-distributed gaps with mean 1 / rate; of shape 1 they are exponential."""
    at_s = 0.0
    while True:
        times_s = at_s + np.cumsum(rng.gamma(shape, 1.0 / (rate_per_s * shape), _AT_A_TIME))
        at_s = float(times_s[-1])
        yield from times_s.tolist()


def _ramp_time_s(ramp: RampArrivals, events: float) -> float:
    """When a Poisson process whose rate climbs evenly has seen as many `events` as one of rate 1 has at that time.

    Inverts the mean number of events until t, from * t + (to - from) * t^2 / (2 * over) (the time change of
    inhomogeneous Poisson processes; Cinlar, Introduction to Stochastic Processes, 1975, chapter 4.7).
    """
    first, last, over_s = ramp.from_rate_per_s, ramp.to_rate_per_s, ramp.over_s
    until_end = (first + last) / 2.0 * over_s
    if events >= until_end:
        return over_s + (events - until_end) / last
    # The root of the quadratic in the form that does not cancel, and that holds for equal rates as well.
    return 2.0 * events / (first + sqrt(first * first + 2.0 * (last - first) / over_s * events))


def _replayed(times_s: FloatArray) -> Iterator[float]:
    """The recorded times, and again from the start when they are used up, a mean gap after the last."""
    period_s = float(times_s[-1]) * times_s.size / max(1, times_s.size - 1)
    for turn in count():
        yield from (times_s + turn * period_s).tolist()
        if period_s <= 0.0:
            return
