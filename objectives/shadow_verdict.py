"""Whether an engine keeps its limits at a rate, told from how it differs from a model that gets the same requests.

The share of requests over a limit is that of the model in the long run, and what the engine has more of it than the
model among the very requests that both got. The difference varies much less than the share itself, which a single busy
time decides. The model is fixed before the load, so that the requests that are judged have no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.scoring import Verdict
from optimizer.objectives.sequential import block_means, mean_interval
from optimizer.objectives.shadow import Heard, Shadow, TailLimit
from optimizer.objectives.shadow_engine import ShadowEngine

_BLOCKS = 30
"""Of the long run, longer than a queue remembers."""


@dataclass(frozen=True, slots=True)
class _Share:
    """How many requests of the model are over a level in the long run: their share, and its standard error."""

    level_s: float
    share: float
    error: float

    @classmethod
    def of(cls, values_s: FloatArray, level_s: float) -> _Share:
        means = block_means((values_s > level_s).astype(np.float64), _BLOCKS)
        return cls(level_s, float(means.mean()), float(means.std(ddof=1)) / math.sqrt(_BLOCKS))

    def end(self, real_s: FloatArray, model_s: FloatArray, level: float, side: int) -> float | None:
        """Upper (side 1) or lower (side -1) confidence end of the engine's share, or None when nothing bounds it.

        It is never nearer than what one kind of isolated late request would allow of which none was seen.
        """
        more = (real_s > self.level_s).astype(np.float64) - (model_s > self.level_s)
        found = mean_interval(more, level=1.0 - 2.0 * level)
        if found.low is None or found.high is None:
            return None
        mean = float(more.mean())
        half = math.hypot((found.high - found.low) / 2.0, NormalDist().inv_cdf(1.0 - level) * self.error)
        return self.share + mean + side * max(half, math.log(1.0 / level) / more.size)


@dataclass(frozen=True, slots=True)
class _Expected:
    limit: TailLimit
    engine: ShadowEngine
    upper: _Share
    lower: _Share


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the model does at one rate in the long run."""

    limits: Sequence[_Expected]

    def verdict(self, heard: Heard, level: float) -> Verdict:
        """FEASIBLE when each limit's share of requests over it is shown to be at most what is allowed.

        Args:
            heard: What the engine made of its requests so far.
            level: Largest chance, at one look, of FEASIBLE where a percentile lies the tolerance above its limit, and
                of INFEASIBLE for one that lies as far below.
        """
        verdicts = {_verdict(expected, heard, number, level) for number, expected in enumerate(self.limits)}
        for verdict in (Verdict.INFEASIBLE, Verdict.UNDECIDED):
            if verdict in verdicts:
                return verdict
        return Verdict.FEASIBLE


def expectation(shadow: Shadow, rate_per_s: float, tolerance: float, *, requests: int) -> Expectation | None:
    """What the model does at a rate; None without a model.

    Args:
        shadow: The model.
        rate_per_s: Requests per second.
        tolerance: Relative distance from a limit within which either verdict is right.
        requests: How many the model gets.
    """
    engines = shadow.engines()
    if engines is None:
        return None
    return Expectation(
        tuple(
            _Expected(
                limit,
                engine,
                _Share.of(values_s, limit.limit_s * (1.0 + tolerance)),
                _Share.of(values_s, limit.limit_s * (1.0 - tolerance)),
            )
            for limit, engine, values_s in zip(
                shadow.limits, engines, shadow.long_run_s(rate_per_s, engines, requests), strict=True
            )
        )
    )


def _verdict(expected: _Expected, heard: Heard, number: int, level: float) -> Verdict:
    real_s, model_s = heard.both(expected.engine, number, expected.limit.metric)
    high = expected.upper.end(real_s, model_s, level, 1)
    low = expected.lower.end(real_s, model_s, level, -1)
    if high is not None and high <= expected.limit.allowed:
        return Verdict.FEASIBLE
    return Verdict.INFEASIBLE if low is not None and low > expected.limit.allowed else Verdict.UNDECIDED
