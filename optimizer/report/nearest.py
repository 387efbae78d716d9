"""What a study without a feasible trial can still tell: the nearest miss, the limit that binds, what to relax."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Constraint, Verdict

_STATED = "_ms"
"""What the names of the limits end in that a person states; the share of failed requests is none to be relaxed."""


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


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One limit that, relaxed alone, a measured trial would have met with all others.

    Attributes:
        trial: That trial; it meets every other limit.
        name: The limit, such as `p99_e2e_ms`.
        limit: As it was stated, in the metric's unit.
        needed: The value that would do, rounded up to three digits.
        is_sure: The trial's interval lies below `needed`, or it has none and its figure counts as certain, as reported
            ones do; otherwise its run was too short for an upper end, and `needed` is what was observed.
    """

    trial: TrialRecord
    name: str
    limit: float
    needed: float
    is_sure: bool

    @property
    def percent(self) -> float:
        """By how much the limit grows."""
        return 100.0 * (self.needed / self.limit - 1.0)


def least_relaxation(trials: list[TrialRecord]) -> Relaxation | None:
    """The smallest that makes any trial feasible, a sure one before one that is not; None when no single limit does."""
    return min(_relaxations(trials), key=_needs, default=None)


def best_relaxation(trials: list[TrialRecord], *, maximise: bool) -> Relaxation | None:
    """That which makes the best trial feasible, of those for which one limit is enough; None when there is none.

    Of trials that are equally good the one that needs least.
    """
    sign = 1.0 if maximise else -1.0
    found = [(r, r.trial.value) for r in _relaxations(trials)]
    valued = [(sign * value, r) for r, value in found if value is not None and math.isfinite(value)]
    best = max((value for value, _ in valued), default=None)
    return min((r for value, r in valued if value == best), key=_needs, default=None)


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


def _needs(relaxation: Relaxation) -> tuple[bool, float, int]:
    """Smaller is to be preferred."""
    return not relaxation.is_sure, relaxation.percent, relaxation.trial.number


def _relaxations(trials: list[TrialRecord]) -> list[Relaxation]:
    return [found for trial in trials if (found := _relaxation(trial)) is not None]


def _relaxation(trial: TrialRecord) -> Relaxation | None:
    constraints = () if trial.score is None else trial.score.constraints
    not_met = [c for c in constraints if c.verdict is not Verdict.FEASIBLE]
    if len(not_met) != 1 or not not_met[0].name.endswith(_STATED) or not_met[0].limit <= 0.0:
        return None
    (broken,) = not_met
    has_end = broken.high is not None and math.isfinite(broken.high)
    needed = broken.high if has_end else broken.observed
    is_certain = broken.low is None and broken.high is None and broken.confidence is None
    if needed is None or not broken.limit < needed < math.inf:
        return None
    return Relaxation(trial, broken.name, broken.limit, _rounded_up(needed), has_end or is_certain)


def _rounded_up(value: float) -> float:
    """To three digits, never below the value."""
    step = Decimal(10) ** (Decimal(value).adjusted() - 2)
    return float((Decimal(value) / step).to_integral_value(ROUND_CEILING) * step)


def _constraints(trials: list[TrialRecord]) -> list[Constraint]:
    return [constraint for trial in trials if trial.score is not None for constraint in trial.score.constraints]
