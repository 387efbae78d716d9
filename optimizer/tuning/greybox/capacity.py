"""The highest arrival rate at which every limit still holds, by the engine model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.engine_flags import EngineFlags
from optimizer.tuning.greybox.engine_metrics import log_metric
from optimizer.tuning.greybox.engine_model import Behaviour, saturated_rate, steady_state

_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96])
"""Of the saturated engine's rate, at which limits are looked at; between them the excess is a straight line."""


def log_capacity(
    coefficients: FloatArray,
    flags: EngineFlags,
    pool_tokens: FloatArray,
    behaviour: Behaviour,
    constants: Mapping[str, float],
) -> FloatArray:
    """Natural logarithm of requests per second, shape (n,).

    Args:
        coefficients: Shape (7,), or (7, n) for a set of its own for each launch.
        flags: Columns of shape (n,).
        pool_tokens: Shape (n,).
        behaviour: Of an open loop.
        constants: By limit, what makes the logarithm of its metric that of metric over limit.
    """
    most = saturated_rate(coefficients, flags, pool_tokens, behaviour)
    rates = _SHARES[:, None] * most
    steady = steady_state(coefficients, flags, pool_tokens, behaviour, rates)
    excesses = [
        figures + constant
        for name, constant in constants.items()
        if (figures := log_metric(steady, behaviour.facts, name)) is not None
    ]
    log_rates: FloatArray = np.log(rates)
    if not excesses:
        highest: FloatArray = log_rates[-1]
        return highest
    return _crossing(log_rates, np.maximum.accumulate(np.max(excesses, axis=0), axis=0))


def _crossing(log_rates: FloatArray, excess: FloatArray) -> FloatArray:
    """Where a rising excess, shape (shares, n), passes 0; below all rates as much as it is above 0 there."""
    held = (excess <= 0.0).sum(axis=0)
    last = len(excess) - 1
    columns = np.arange(excess.shape[1])
    below, above = np.clip(held - 1, 0, last), np.clip(held, 0, last)
    rise = np.maximum(excess[above, columns] - excess[below, columns], 1e-12)
    part = np.where((held > 0) & (held <= last), -excess[below, columns] / rise, 0.0)
    found: FloatArray = log_rates[below, columns] + part * (log_rates[above, columns] - log_rates[below, columns])
    bounded: FloatArray = np.where(held == 0, found - excess[0], found)
    return bounded
