"""Whether repeated runs on held-out traffic confirm that a winner beats the baseline and keeps the limits."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.confirmation import FEWEST_REPEATS, Arm, arm_of, confirmation_trials, run_of
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Verdict
from optimizer.core.trial import TrialState
from optimizer.objectives.ratio import Ratio, ratio_of_means


class ConfirmationOutcome(enum.StrEnum):
    """What the repeats say of the winner. UNDECIDED is an answer: they do not tell."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    UNDECIDED = "undecided"


class Reason(enum.StrEnum):
    """What an outcome rests on."""

    BETTER = "better"
    """The whole interval of the ratio is better than 1, and every run of the winner kept the limits."""
    NOT_BETTER = "not_better"
    """The whole interval is worse than 1, or ends there."""
    WIDE = "wide"
    """1 lies within the interval."""
    LIMIT_BROKEN = "limit_broken"
    """A limit was broken in more than half of the winner's runs."""
    LIMIT_OPEN = "limit_open"
    """A limit did not hold in every run of the winner."""
    WINNER_FAILED = "winner_failed"
    BASELINE_FAILED = "baseline_failed"
    UNFINISHED = "unfinished"
    """Too few runs were made so far."""


@dataclass(frozen=True, slots=True)
class LimitCount:
    """In how many runs of the winner, or of the baseline, a limit held, was broken, or was not decided."""

    held: int
    broken: int
    open: int

    @property
    def runs(self) -> int:
        """All of them."""
        return self.held + self.broken + self.open


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the runs of one confirmation come to.

    Attributes:
        winner: Number of the trial that is confirmed.
        outcome: The verdict.
        reason: What it rests on.
        ratio: Of the winner's figure to the baseline's; None as long as one of them has none.
        runs: How many runs of each were measured.
        limits: Of each arm, limit name to counts.
        metric: The objective's metric; None as long as nothing was measured.
    """

    winner: int
    outcome: ConfirmationOutcome
    reason: Reason
    ratio: Ratio | None
    runs: Mapping[Arm, int]
    limits: Mapping[Arm, Mapping[str, LimitCount]]
    metric: str | None


def judge_confirmation(trials: list[TrialRecord], winner: int, *, maximise: bool) -> Confirmation | None:
    """Judges the confirmation of one trial; None when there is no run of it.

    The verdict: NOT_CONFIRMED when the winner failed, when a limit was broken in most of its runs, or when the interval
    of the ratio (see `ratio_of_means`) shows no gain; CONFIRMED when the whole interval is a gain and every run kept
    every limit; else UNDECIDED.

    Args:
        trials: Of the study.
        winner: Number of the confirmed trial.
        maximise: Whether more of the objective's metric is better.
    """
    runs = confirmation_trials(trials, winner)
    if not runs:
        return None
    by_arm = {arm: [trial for trial in runs if arm_of(run_of(trial.number)) is arm] for arm in Arm}
    measured = {arm: [trial for trial in by_arm[arm] if trial.score is not None] for arm in Arm}
    figures = {arm: np.array([trial.value for trial in measured[arm]], dtype=np.float64) for arm in Arm}
    comparable = all(values.size and (values > 0.0).all() for values in figures.values())
    ratio = ratio_of_means(figures[Arm.WINNER], figures[Arm.BASELINE]) if comparable else None
    limits = {arm: _limit_counts(measured[arm]) for arm in Arm}
    outcome, reason = _judge(by_arm, ratio, limits[Arm.WINNER], maximise=maximise)
    scores = [trial.score for trial in (*measured[Arm.WINNER], *measured[Arm.BASELINE]) if trial.score is not None]
    return Confirmation(
        winner=winner,
        outcome=outcome,
        reason=reason,
        ratio=ratio,
        runs={arm: len(found) for arm, found in measured.items()},
        limits=limits,
        metric=scores[0].metric if scores else None,
    )


def _judge(
    by_arm: Mapping[Arm, Sequence[TrialRecord]],
    ratio: Ratio | None,
    limits: Mapping[str, LimitCount],
    *,
    maximise: bool,
) -> tuple[ConfirmationOutcome, Reason]:
    if any(trial.state is TrialState.FAILED for trial in by_arm[Arm.WINNER]):
        return ConfirmationOutcome.NOT_CONFIRMED, Reason.WINNER_FAILED
    if any(trial.state is TrialState.FAILED for trial in by_arm[Arm.BASELINE]):
        return ConfirmationOutcome.UNDECIDED, Reason.BASELINE_FAILED
    ended = [sum(trial.state.is_final for trial in runs) for runs in by_arm.values()]
    if min(ended) < FEWEST_REPEATS or ended[0] != ended[1] or ratio is None or ratio.low is None or ratio.high is None:
        return ConfirmationOutcome.UNDECIDED, Reason.UNFINISHED
    if any(2 * count.broken > count.runs for count in limits.values()):
        return ConfirmationOutcome.NOT_CONFIRMED, Reason.LIMIT_BROKEN
    worst, best = (ratio.low, ratio.high) if maximise else (1.0 / ratio.high, 1.0 / ratio.low)
    if best <= 1.0:
        return ConfirmationOutcome.NOT_CONFIRMED, Reason.NOT_BETTER
    if worst <= 1.0:
        return ConfirmationOutcome.UNDECIDED, Reason.WIDE
    if any(count.held < count.runs for count in limits.values()):
        return ConfirmationOutcome.UNDECIDED, Reason.LIMIT_OPEN
    return ConfirmationOutcome.CONFIRMED, Reason.BETTER


def _limit_counts(runs: Sequence[TrialRecord]) -> dict[str, LimitCount]:
    verdicts: dict[str, list[Verdict]] = {}
    for trial in runs:
        for constraint in () if trial.score is None else trial.score.constraints:
            verdicts.setdefault(constraint.name, []).append(constraint.verdict)
    return {
        name: LimitCount(found.count(Verdict.FEASIBLE), found.count(Verdict.INFEASIBLE), found.count(Verdict.UNDECIDED))
        for name, found in verdicts.items()
    }
