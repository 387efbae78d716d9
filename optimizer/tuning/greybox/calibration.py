"""Corrects the coefficients by what trials revealed: the most likely ones under the prior, in logarithms.

Residuals are softened (`soft_l1`), so that a trial which met a neighbour on its machine does not spoil the rest. What
the coefficients would have been without a trial follows from the normal equations of the last step (the influence of
an observation: Cook & Weisberg, Residuals and Influence in Regression, 1982), so that no fit is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.coefficients import Prior
from optimizer.tuning.greybox.engine_flags import EngineFlags
from optimizer.tuning.greybox.facts import ServingFacts
from optimizer.tuning.greybox.kv_demand import fitting_requests, known_hit_share, outgrown_share, pool_pressure

NOISE = {"output_tokens_per_s": 0.08, "mean_tpot_ms": 0.10, "mean_ttft_ms": 0.25, "running_mean": 0.10}
"""What is fitted, and by how much, in log units, a good model is off."""

_MOST_EVALUATIONS = 25
_SOFT_FROM = 2.0
"""Standard deviations beyond which a residual counts less than squared."""
_SLOPE_STEP = 1e-4

_PREEMPTION = 1.0
_PREEMPTION_PRIOR_WEIGHT = 0.005
"""As much as one trial whose requests outgrow the pool by some 7 %."""
_ACCEPTANCE = {"ngram": 0.4, "suffix": 0.5}
_DRAFT_ACCEPTANCE = 0.7
"""Usual chances that one guess is accepted, of methods that look up and of those that have a model."""

Predict = Callable[[FloatArray], Mapping[str, FloatArray]]
"""From coefficients, shape (7, m, 1), to logarithms of metrics, shape (m, n)."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The coefficients, and those without each trial.

    Attributes:
        coefficients: Shape (7,).
        without: Shape (n, 7): row i is what they would be without trial i.
    """

    coefficients: FloatArray
    without: FloatArray


def fit_coefficients(prior: Prior, observed: Sequence[Mapping[str, float | None]], predict: Predict) -> Fit:
    """The coefficients after these trials.

    Args:
        prior: Before them.
        observed: Metrics of each trial.
        predict: The model of the same trials.
    """
    targets, weights = _targets(observed)

    def rows(coefficients: FloatArray) -> FloatArray:
        """Residuals of shape (m, trials * metrics), for coefficients of shape (7, m)."""
        metrics = predict(coefficients[:, :, None])
        stacked = np.stack([metrics[name] for name in NOISE], axis=-1)
        return ((stacked - targets) * weights).reshape(coefficients.shape[1], -1)

    def residuals(coefficients: FloatArray) -> FloatArray:
        return np.concatenate([rows(coefficients[:, None])[0], (coefficients - prior.mean) / prior.sd])

    def slopes(coefficients: FloatArray) -> FloatArray:
        moved = np.column_stack([coefficients[:, None] + _SLOPE_STEP * np.eye(coefficients.size), coefficients])
        values = rows(moved)
        return np.vstack([(values[:-1] - values[-1]).T / _SLOPE_STEP, np.diag(1.0 / prior.sd)])

    found = least_squares(
        residuals,
        prior.mean,
        jac=slopes,
        loss="soft_l1",
        f_scale=_SOFT_FROM,
        x_scale=prior.sd,
        max_nfev=_MOST_EVALUATIONS,
    )
    coefficients = np.asarray(found.x, dtype=np.float64)
    return Fit(coefficients, _without_each(coefficients, residuals(coefficients), slopes(coefficients), len(observed)))


def _targets(observed: Sequence[Mapping[str, float | None]]) -> tuple[FloatArray, FloatArray]:
    """Logarithms of what was seen and their weights, shape (n, metrics); weight 0 for what was not."""
    targets = np.zeros((len(observed), len(NOISE)))
    weights = np.zeros_like(targets)
    for row, metrics in enumerate(observed):
        for column, (name, noise) in enumerate(NOISE.items()):
            value = positive(metrics.get(name))
            if value is not None:
                targets[row, column], weights[row, column] = math.log(value), 1.0 / noise
    return targets, weights


def _without_each(coefficients: FloatArray, residuals: FloatArray, slopes: FloatArray, trials: int) -> FloatArray:
    softened = 1.0 / np.sqrt(1.0 + (residuals / _SOFT_FROM) ** 2) ** 0.5
    residuals, slopes = residuals * softened, slopes * softened[:, None]
    inverse = np.linalg.inv(slopes.T @ slopes)
    size = len(NOISE)
    without = np.empty((trials, coefficients.size))
    for trial in range(trials):
        own = slice(trial * size, (trial + 1) * size)
        lever = slopes[own] @ inverse @ slopes[own].T
        alone = np.linalg.solve(np.eye(size) * (1.0 + 1e-9) - lever, residuals[own])
        without[trial] = coefficients + inverse @ slopes[own].T @ alone
    return without


def fit_behaviour(
    flags: EngineFlags,
    pool_tokens: FloatArray,
    observed: Sequence[Mapping[str, float | None]],
    facts: ServingFacts,
) -> tuple[float, float]:
    """Hidden hits and preemption, as `Behaviour` has them, from what trials reported."""
    preempted = np.array([_ratio(metrics, "preemptions", "requests_counted") for metrics in observed])
    outgrown = outgrown_share(flags, pool_tokens, facts)
    if facts.rate_per_s is not None:
        running = np.array([_number(metrics.get("running_mean")) for metrics in observed])
        most = np.minimum(flags.seqs, fitting_requests(flags, pool_tokens, facts))
        outgrown = outgrown * np.nan_to_num(pool_pressure(running, most))
    known = np.isfinite(preempted) & (outgrown > 0.0)
    weight = _PREEMPTION_PRIOR_WEIGHT
    top = weight * _PREEMPTION + float((outgrown[known] * np.minimum(preempted[known], 3.0)).sum())
    preemption = top / (weight + float((outgrown[known] ** 2).sum()))
    hits = np.array([_number(metrics.get("prefix_cache_hit_rate")) for metrics in observed])
    share = known_hit_share(flags, facts)
    caching = np.isfinite(hits) & (flags.caching > 0.0)
    more = np.clip((hits - share) / np.maximum(1.0 - share, 1e-9), 0.0, 1.0)[caching]
    return (float(np.median(more)) if more.size else 0.0), preemption


def fit_acceptance(
    methods: Sequence[str | None], guesses: FloatArray, observed: Sequence[Mapping[str, float | None]]
) -> dict[str, float]:
    """By method of speculation the chance that one guess is accepted; only methods that trials tried."""
    seen: dict[str, list[float]] = {}
    for method, count, metrics in zip(methods, guesses, observed, strict=True):
        rate = metrics.get("spec_acceptance_rate")
        if method is not None and count >= 1.0 and rate is not None and 0.0 <= rate <= 1.0:
            seen.setdefault(method, []).append(_chance(rate, float(count)))
    return {
        method: (sum(chances) + 0.5 * usual_acceptance(method)) / (len(chances) + 0.5)
        for method, chances in seen.items()
    }


def usual_acceptance(method: str | None) -> float:
    """Before any trial with the method."""
    return _ACCEPTANCE.get((method or "").removesuffix("_gpu"), _DRAFT_ACCEPTANCE)


def _chance(rate: float, guesses: float) -> float:
    """The chance of one guess under which this share of all guesses is accepted; by bisection."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2.0
        if sum(middle**place for place in range(1, int(guesses) + 1)) / guesses < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _ratio(metrics: Mapping[str, float | None], part: str, whole: str) -> float:
    base = positive(metrics.get(whole))
    return math.nan if base is None else _number(metrics.get(part)) / base


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) or value < 0.0 else float(value)


def positive(value: float | None) -> float | None:
    """The value if it is a positive finite number."""
    return float(value) if value is not None and 0.0 < value < math.inf else None
