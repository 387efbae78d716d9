"""A model engine that gets the same traffic as the real one, so that the luck of that traffic can be told apart.

How late the latest requests of a window are depends more on which requests came, and when, than on the engine: near
saturation 12,000 requests tell a P99 to 15 %, which is 2 % in rate. The model hears the same requests, and is made as
slow as the engine: so slow that its percentile, of these very requests, is the one that was seen. What it then does
with very many requests is free of the window's luck (a control variate: Law, Simulation Modeling and Analysis, chapter
11). Where the model is poor, more of the luck stays, and the verdict takes more requests or stays open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.objectives.headroom import Crossing
from optimizer.objectives.score import percentile_with_failures
from optimizer.objectives.shadow_engine import FitRows, ShadowEngine, Traffic, fitted
from optimizer.objectives.used_up import first_used_up

LONG_REQUESTS, SHORT_REQUESTS = 600_000, 100_000
"""Requests that the model gets alone: they tell a knee to 0.3 % and to 0.7 %, in 2 s and in a third of one."""
SETTLED_AFTER = 0.02
"""Share of these in which its queue forgets that it began empty."""
_FAR = 0.3
"""Error of what a level tells of the model, as a share of the logarithm of how far its latency lies from the limit."""
_LEAST_ERROR = 0.01
_PRIOR, _MOST_UNLIKE, _UNLIKE = 0.03, 0.2, 0.1
"""The fitted model is taken to be as slow as the engine within 3 %. One that must be made 10 % slower or faster than it
was fitted is no model of this engine. No more than 20 % are tried."""
_ROUNDS = 3
_SLOWER_BY = 0.005
_BLOCKS = 10
_BENT = 0.01
"""Error of the knee's logarithm beside that of chance: the engine is no model, and the model's own run has an end. From
simulated engines (tests/bench/capacity.py)."""


@dataclass(frozen=True, slots=True)
class TailLimit:
    """An upper bound on a percentile of a latency that the model knows.

    Attributes:
        metric: One of `KNOWN_METRICS`.
        percent: 0 < percent < 100.
        limit_s: In seconds.
    """

    metric: str
    percent: float
    limit_s: float

    @property
    def allowed(self) -> float:
        """Largest share of requests over the limit."""
        return 1.0 - self.percent / 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What a real engine made of some traffic.

    Attributes:
        traffic: What it got from the opening of the window on, and after it closed.
        latencies_s: Of each limit, in order of schedule, of the first requests; failed ones have +inf.
        skipped: Requests at the start that engine and model may have met in different states.
    """

    traffic: Traffic
    latencies_s: tuple[FloatArray, ...]
    skipped: int

    def both(self, engine: ShadowEngine, number: int, metric: str) -> tuple[FloatArray, FloatArray]:
        """The latency of limit `number` of the same requests, of the real engine and of the model, in seconds."""
        real_s = self.latencies_s[number]
        model_s = engine.latencies_s(self.traffic, metric)[: real_s.size]
        return real_s[self.skipped :], model_s[self.skipped :]


class Shadow:
    """The model beside the engine, and what was seen of both.

    Args:
        limits: What must hold.
        slots: Requests that run at a time.
        at_rate: So many requests as the workload sends them, at a rate; the same ones for every rate.
    """

    def __init__(self, limits: tuple[TailLimit, ...], slots: int, at_rate: Callable[[float, int], Traffic]) -> None:
        self._limits = limits
        self._slots = slots
        self._at_rate = at_rate
        self._rows: list[FitRows] = []
        self._heard: list[Heard] = []
        self._fitted: ShadowEngine | None = None

    @property
    def limits(self) -> tuple[TailLimit, ...]:
        """What must hold."""
        return self._limits

    @property
    def fitted(self) -> ShadowEngine | None:
        """The model by the times of tokens alone; None without one."""
        return self._fitted

    def learn(self, rows: FitRows, heard: Heard | None = None) -> None:
        """Fits the model anew.

        Args:
            rows: What a load run tells of its times.
            heard: The run, if it was at a rate.
        """
        if heard is not None and not self._heard:
            # The saturated engine tells one time for a step, and not how it depends on what runs.
            self._rows.clear()
        self._rows.append(rows)
        self._fitted = fitted(self._rows, self._slots) or self._fitted
        if heard is not None:
            self._heard.append(heard)

    def knee(self, served_per_s: float, *, requests: int) -> Crossing | None:
        """Where the first limit is used up; None without a model that is like the engine.

        Args:
            served_per_s: What the saturated engine serves.
            requests: How many the model gets at each rate.
        """
        alike = self._all_alike()
        if alike is None:
            return None

        def over(rate_per_s: float) -> FloatArray:
            long = self.long_run_s(rate_per_s, [engine for engine, _ in alike], requests)
            tails = [
                math.log(float(np.percentile(values_s, limit.percent)) / limit.limit_s)
                for values_s, limit in zip(long, self._limits, strict=True)
            ]
            return np.array(tails)

        rate, number, slope = first_used_up(over, served_per_s)
        return Crossing(rate, math.hypot(alike[number][1] * (1.0 + slope) / slope, _BENT))

    def engines(self) -> list[ShadowEngine] | None:
        """The model as each limit tells that the engine is; None without one."""
        alike = self._all_alike()
        return None if alike is None else [engine for engine, _ in alike]

    def long_run_s(self, rate_per_s: float, engines: Sequence[ShadowEngine], requests: int) -> list[FloatArray]:
        """The latencies of each limit in a long run of the model, without its beginning."""
        traffic = self._at_rate(rate_per_s, requests)
        after = int(SETTLED_AFTER * requests)
        return [
            engine.latencies_s(traffic, limit.metric)[after:]
            for engine, limit in zip(engines, self._limits, strict=True)
        ]

    def _all_alike(self) -> list[tuple[ShadowEngine, float]] | None:
        """The model for each limit; None where there is none, or one that is unlike the engine."""
        if self._fitted is None:
            return None
        logs = [self._slower(self._fitted, number) for number in range(len(self._limits))]
        if any(abs(log) > _UNLIKE for log, _ in logs):
            return None
        return [(self._fitted.slower(math.exp(log)), error) for log, error in logs]

    def _slower(self, engine: ShadowEngine, number: int) -> tuple[float, float]:
        """By how much slower one latency tells that the engine is, as a logarithm, and the error of that.

        By Gauss and Newton: how slow makes the model's percentiles at all levels fit best, weighted by their errors.
        """
        seen = [(heard, error) for heard in self._heard if (error := self._error(engine, heard, number)) is not None]
        log, weight = 0.0, 1.0 / _PRIOR**2
        for _ in range(_ROUNDS if seen else 0):
            pull, weight = -log / _PRIOR**2, 1.0 / _PRIOR**2
            for heard, error in seen:
                at, above = (
                    self._log_over(engine.slower(math.exp(log + more)), heard, number) for more in (0.0, _SLOWER_BY)
                )
                slope = max((above - at) / _SLOWER_BY, 1.0)
                pull -= slope * at / error**2
                weight += (slope / error) ** 2
            log = min(max(log + pull / weight, -_MOST_UNLIKE), _MOST_UNLIKE)
        return log, 1.0 / math.sqrt(weight)

    def _log_over(self, engine: ShadowEngine, heard: Heard, number: int) -> float:
        """By how much the model's percentile lies above the engine's, as a logarithm."""
        limit = self._limits[number]
        return _log_ratio(*heard.both(engine, number, limit.metric), limit.percent)

    def _error(self, engine: ShadowEngine, heard: Heard, number: int) -> float | None:
        """Standard error of that, by the jackknife over blocks; None where the run tells nothing of the percentile."""
        limit = self._limits[number]
        real_s, model_s = heard.both(engine, number, limit.metric)
        if real_s.size * limit.allowed < 1.0 or not math.isfinite(percentile_with_failures(real_s, limit.percent)):
            return None
        block = np.arange(real_s.size) * _BLOCKS // real_s.size
        left = np.array(
            [_log_ratio(real_s[block != out], model_s[block != out], limit.percent) for out in range(_BLOCKS)]
        )
        if not np.isfinite(left).all():
            return None
        chance = math.sqrt((_BLOCKS - 1) / _BLOCKS * float(((left - left.mean()) ** 2).sum()))
        far = math.log(percentile_with_failures(real_s, limit.percent) / limit.limit_s)
        return math.hypot(chance, _FAR * far, _LEAST_ERROR)


def _log_ratio(real_s: FloatArray, model_s: FloatArray, percent: float) -> float:
    return math.log(float(np.percentile(model_s, percent)) / percentile_with_failures(real_s, percent))
