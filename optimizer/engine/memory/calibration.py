"""What starts taught of the coefficients: a pure function of what engines reported, whatever the order.

A Gaussian prior over the coefficients, updated by Gauss-Newton with Student-t weights, so that one start that met a
neighbour on its card does not spoil the rest (the linearised Bayesian regression of Gelman et al., Bayesian Data
Analysis, 3rd ed., sections 14.8 and 17.2). The quantiles of a prediction come from fixed draws of the posterior: the
larger of two terms is not linear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.engine_config import FlagValue
from optimizer.engine.memory.overhead import Array, Coefficients, Quantities, slopes, taken_gib

_DRAWS = 3000
_KEPT_DRAWS = 500
_WIDER = 1.3
"""The draws come from a Gaussian so much wider than the linearised posterior, and are then weighed by the real one."""
_ROUNDS = 80
_STEP = 0.5
"""Share of each Gauss-Newton step that is taken: whole ones swing from one side of a maximum's edge to the other."""
_FREEDOM = 6.0
"""Degrees of freedom of the residuals: one of ten standard deviations weighs a fifteenth of one of none."""
_NOISE_GIB = 0.02
"""Reports have two decimals, and pages, blocks and the allocator's segments are whole."""
_NOISE_SHARE = 0.03
"""Of what is taken besides weights: no forward pass is exactly a multiple of another."""
_WEIGHTS_NOISE_GIB = 0.01
_WEIGHTS_NOISE_SHARE = 0.001
_TAIL = 0.005
"""Outside the interval on either side: it is to hold what an engine reports in 99 of 100 starts."""
_TAIL_SDS = 2.576
"""The same for a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class MemoryObservation:
    """What one engine reported.

    Attributes:
        flags: Its flags.
        env: Its environment, as far as the study set it.
        requested_bytes: Memory it took as its own, weights and all; None when it did not say.
        pool_tokens: Its KV pool in tokens; None when it did not say.
        pool_bytes: Its KV pool in bytes; None when it did not say, and where `pool_tokens` says it more exactly.
        weights_bytes: The weights it loaded on one device; None when it did not say.
    """

    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    requested_bytes: float | None = None
    pool_tokens: float | None = None
    pool_bytes: float | None = None
    weights_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """An observation as numbers: the quantities of its launch, and GiB taken besides the KV pool and by weights."""

    amounts: Quantities
    taken_gib: float
    weights_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """GiB: the ends of the 99 % interval and its middle."""

    low: float
    mid: float
    high: float


class Calibration:
    """The coefficients, as far as they are known.

    Args:
        means: Before any start.
        sds: Their standard deviations before any start.
        readings: What was observed.
    """

    def __init__(self, means: Coefficients, sds: Coefficients, readings: Sequence[Reading] = ()) -> None:
        self.readings = len(readings)
        self._mean, covariance = _posterior(means.as_array(), sds.as_array(), readings)
        self._draws = _drawn(means.as_array(), sds.as_array(), readings, self._mean, covariance)

    @property
    def coefficients(self) -> Coefficients:
        """Their most likely values."""
        return Coefficients(*map(float, self._mean))

    def taken(self, amounts: Quantities) -> Interval:
        """GiB that a launch takes besides its KV pool."""
        row = amounts.as_array()
        middle = float(taken_gib(self._mean[None, :], row)[0])
        low, high = np.quantile(taken_gib(self._draws, row), (_TAIL, 1.0 - _TAIL))
        noise = _TAIL_SDS * _noise_gib(middle - float(self._mean[0]) * amounts.weights)
        below, above = max(middle - float(low), 0.0), max(float(high) - middle, 0.0)
        return Interval(middle - math.hypot(below, noise), middle, middle + math.hypot(above, noise))


def _posterior(mean: Array, sds: Array, readings: Sequence[Reading]) -> tuple[Array, Array]:
    """Mean, shape (k,), and covariance, shape (k, k), of the coefficients."""
    prior_precision = np.diag(1.0 / np.maximum(sds, 1e-6) ** 2)
    theta = mean.copy()
    precision = prior_precision
    for turn in range(_ROUNDS if readings else 0):
        # The first round trusts every reading alike: what lies far from the prior is news, and not yet an outlier.
        rows, targets, weights = _linearised(theta, readings, robust=turn > 0)
        precision = prior_precision + (rows.T * weights) @ rows
        moved = np.linalg.solve(precision, prior_precision @ mean + (rows.T * weights) @ targets)
        ahead = np.maximum(theta + _STEP * (moved - theta), 0.0)
        settled = bool(np.all(np.abs(ahead - theta) < 1e-7))
        theta = ahead
        if settled and turn > 0:
            break
    covariance: Array = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    return theta, covariance


def _drawn(mean: Array, sds: Array, readings: Sequence[Reading], centre: Array, covariance: Array) -> Array:
    """Draws of the posterior, shape (n, k), always the same: sampling and importance resampling (Gelman, 10.4)."""
    normal = np.random.default_rng(0).standard_normal((_DRAWS // 2, len(mean)))
    # In pairs on either side, so that the middle of what is linear is its mean.
    normal = np.concatenate([normal, -normal])
    drawn: Array = np.maximum(centre + _WIDER * normal @ np.linalg.cholesky(covariance).T, 0.0)
    log_weight = 0.5 * np.sum(normal**2, axis=1) - 0.5 * np.sum(((drawn - mean) / np.maximum(sds, 1e-6)) ** 2, axis=1)
    for reading in readings:
        amounts = reading.amounts.as_array()
        noise = _noise_gib(reading.taken_gib - reading.amounts.weights)
        residuals = (reading.taken_gib - taken_gib(drawn, amounts)) / noise
        log_weight -= (_FREEDOM + 1.0) / 2.0 * np.log1p(residuals**2 / _FREEDOM)
        if reading.weights_gib is not None:
            off = (reading.weights_gib - drawn[:, 0] * reading.amounts.weights) / _weights_noise_gib(reading)
            log_weight -= 0.5 * off**2
    share = np.cumsum(np.exp(log_weight - log_weight.max()))
    places = (np.arange(_KEPT_DRAWS) + 0.5) / _KEPT_DRAWS * share[-1]
    kept: Array = drawn[np.searchsorted(share, places)]
    return kept


def _linearised(theta: Array, readings: Sequence[Reading], *, robust: bool) -> tuple[Array, Array, Array]:
    """Slopes, shape (m, k), the values that a linear model would have to meet, and their weights, shape (m,)."""
    rows, targets, weights = [], [], []
    for reading in readings:
        amounts = reading.amounts.as_array()
        slope = slopes(theta, amounts)
        residual = reading.taken_gib - float(taken_gib(theta[None, :], amounts)[0])
        noise = _noise_gib(reading.taken_gib - reading.amounts.weights)
        rows.append(slope)
        targets.append(residual + float(slope @ theta))
        weights.append(_weight(residual if robust else 0.0, noise))
        if reading.weights_gib is not None:
            rows.append(np.array([reading.amounts.weights, 0.0, 0.0, 0.0, 0.0, 0.0]))
            targets.append(reading.weights_gib)
            weights.append(1.0 / _weights_noise_gib(reading) ** 2)
    return np.array(rows), np.array(targets), np.array(weights)


def _noise_gib(besides_weights_gib: float) -> float:
    return _NOISE_GIB + _NOISE_SHARE * max(besides_weights_gib, 0.0)


def _weights_noise_gib(reading: Reading) -> float:
    return _WEIGHTS_NOISE_GIB + _WEIGHTS_NOISE_SHARE * reading.amounts.weights


def _weight(residual: float, noise: float) -> float:
    """Precision of a residual under Student's t: that of a normal one, less the further out it lies."""
    return (_FREEDOM + 1.0) / (_FREEDOM + (residual / noise) ** 2) / noise**2
