"""How a violated constraint is told to Optuna, of a trial that ran and of a proposal that never did."""

from __future__ import annotations

CRASH = "crash"
"""The constraint of a setting that does not come to a measurement."""

_MOST = 1.5
"""log(observed / limit) beyond 1.5 (4.5 times the limit) says no more than 'far over'."""


def clipped(violation: float) -> float:
    """A violation without its far ends."""
    return max(-_MOST, min(violation, _MOST))
