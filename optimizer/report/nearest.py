"""What a study without a feasible trial can still tell: the nearest miss and the limit that binds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Constraint, Verdict


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The measured trial that comes nearest to meeting every limit.

    Attributes:
        not_met: Its limits that are broken or undecided.
        excess_percent: How far its worst metric lies above the limit; 0 when its limits are only undecided.
    """

    trial: TrialRecord
    not_met: tuple[Constraint, ...]
    excess_percent: float


def nearest_miss(trials: list[TrialRecord]) -> NearestMiss | None:
    """The trial with the smallest largest violation, or None when no trial has a judged limit.

    A violation is log(observed / limit), so limits in different units compare; exp of it minus one is the excess.
    """
    misses = [miss for trial in trials if (miss := _miss(trial)) is not None]
    return min(misses, key=lambda miss: (miss.excess_percent, miss.trial.number), default=None)


def binding_limit(trials: list[TrialRecord]) -> tuple[str, int, int] | None:
    """The limit that most measured trials do not meet: its name, how many do not, of how many judged by it."""
    judged = Counter(c.name for c in _constraints(trials))
    not_met = Counter(c.name for c in _constraints(trials) if c.verdict is not Verdict.FEASIBLE)
    if not not_met:
        return None
    name, count = not_met.most_common(1)[0]
    return name, count, judged[name]


def _miss(trial: TrialRecord) -> NearestMiss | None:
    constraints = () if trial.score is None else trial.score.constraints
    not_met = tuple(c for c in constraints if c.verdict is not Verdict.FEASIBLE)
    if not not_met or any(c.violation is None for c in not_met):
        return None
    worst = max(c.violation for c in not_met if c.violation is not None)
    return NearestMiss(trial, not_met, max(0.0, 100 * math.expm1(worst)))


def _constraints(trials: list[TrialRecord]) -> list[Constraint]:
    return [constraint for trial in trials if trial.score is not None for constraint in trial.score.constraints]
