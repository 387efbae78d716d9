"""How long the next engine may take to be ready, told from how long the study's engines took so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from optimizer.core.record import AttemptRecord
from optimizer.core.trial import Stage

SLOWEST_FACTOR: Final = 3.0
ALLOWANCE_S: Final = 30.0
FLOOR_S: Final = 60.0
"""A start three times as slow as any before, and half a minute: a setting that compiles anew takes one to two minutes
longer than one whose kernels are cached."""


def learned_start_limit_s(starts_s: Sequence[float], configured_s: float) -> float:
    """`3 x slowest + 30 s`, at least 60 s, never above the configured limit, which holds until a start was seen."""
    if not starts_s:
        return configured_s
    return min(configured_s, max(FLOOR_S, SLOWEST_FACTOR * max(starts_s) + ALLOWANCE_S))


def starts_s(attempts: Iterable[AttemptRecord]) -> list[float]:
    """Seconds from launch to ready of every attempt whose engine came to be loaded."""
    return [
        launching.duration_s
        for attempt in attempts
        for launching, following in zip(attempt.stages, attempt.stages[1:], strict=False)
        if launching.stage is Stage.LAUNCHING
        and following.stage is Stage.WARMING_UP
        and launching.duration_s is not None
    ]
