"""What repeats on held-out traffic say of a winner."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from optimizer.core.confirmation import Arm, arm_of, confirmation_number
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import TrialRole, TrialState
from optimizer.objectives.confirmation import ConfirmationOutcome, Reason, judge_confirmation

HELD, OVER, OPEN = Verdict.FEASIBLE, Verdict.INFEASIBLE, Verdict.UNDECIDED
STATES = {HELD: TrialState.FEASIBLE, OVER: TrialState.INFEASIBLE, OPEN: TrialState.UNDECIDED}


def run_record(run: int, value: float | None, verdict: Verdict = HELD, winner: int = 7) -> TrialRecord:
    number = confirmation_number(winner, run)
    if value is None:
        return TrialRecord("s", number, TrialRole.CONFIRM, TrialState.FAILED)
    limit = Constraint("p99_e2e_ms", 800.0, 700.0, 650.0, 750.0, -0.1, verdict)
    score = Score("output_tokens_per_s", value, True, verdict, (limit,))
    return TrialRecord("s", number, TrialRole.CONFIRM, STATES[verdict], score=score)


def runs(
    baseline: Sequence[float | None], winner: Sequence[float | None], verdicts: tuple[Verdict, ...] = (HELD, HELD, HELD)
):
    values = {Arm.BASELINE: iter(baseline), Arm.WINNER: iter(winner)}
    told = iter(verdicts)
    found = []
    for run in range(len(baseline) + len(winner)):
        arm = arm_of(run)
        verdict = next(told, HELD) if arm is Arm.WINNER else HELD
        for value in itertools.islice(values[arm], 1):
            found.append(run_record(run, value, verdict))
    return found


BETTER = [130.0, 131.0, 132.0]
SAME = [100.0, 101.0, 99.0]

CASES = {
    "better": (runs(SAME, BETTER), ConfirmationOutcome.CONFIRMED, Reason.BETTER),
    "worse": (runs(BETTER, SAME), ConfirmationOutcome.NOT_CONFIRMED, Reason.NOT_BETTER),
    "the same": (runs(SAME, [100.5, 99.5, 101.0]), ConfirmationOutcome.UNDECIDED, Reason.WIDE),
    "better, but noisy": (runs([60.0, 100.0, 150.0], BETTER), ConfirmationOutcome.UNDECIDED, Reason.WIDE),
    "over the limit": (runs(SAME, BETTER, (OVER, HELD, OVER)), ConfirmationOutcome.NOT_CONFIRMED, Reason.LIMIT_BROKEN),
    "over the limit once": (runs(SAME, BETTER, (OVER, HELD, HELD)), ConfirmationOutcome.UNDECIDED, Reason.LIMIT_OPEN),
    "limit undecided": (runs(SAME, BETTER, (HELD, OPEN, HELD)), ConfirmationOutcome.UNDECIDED, Reason.LIMIT_OPEN),
    "winner failed": (runs(SAME, [130.0, None]), ConfirmationOutcome.NOT_CONFIRMED, Reason.WINNER_FAILED),
    "baseline failed": (runs([100.0, None], BETTER), ConfirmationOutcome.UNDECIDED, Reason.BASELINE_FAILED),
    "too few": (runs(SAME[:2], BETTER[:2]), ConfirmationOutcome.UNDECIDED, Reason.UNFINISHED),
    "one run short": (runs(SAME, BETTER)[:5], ConfirmationOutcome.UNDECIDED, Reason.UNFINISHED),
}


@pytest.mark.parametrize("case", CASES)
def test_outcome_and_reason(case):
    trials, outcome, reason = CASES[case]
    found = judge_confirmation(trials, 7, maximise=True)
    assert (found.outcome, found.reason) == (outcome, reason)


def test_where_less_is_better_the_other_side_of_one_confirms():
    trials = runs(BETTER, SAME)
    assert judge_confirmation(trials, 7, maximise=False).outcome is ConfirmationOutcome.CONFIRMED
    assert judge_confirmation(runs(SAME, BETTER), 7, maximise=False).reason is Reason.NOT_BETTER


def test_runs_of_another_winner_do_not_count():
    trials = [*runs(SAME, BETTER), *(run_record(run, 1.0, winner=8) for run in range(6))]
    found = judge_confirmation(trials, 7, maximise=True)
    assert (found.ratio.value, found.runs) == (pytest.approx(1.31, abs=0.001), {Arm.BASELINE: 3, Arm.WINNER: 3})
    assert judge_confirmation(trials, 9, maximise=True) is None


def test_limits_are_counted_run_by_run():
    found = judge_confirmation(runs(SAME, BETTER, (HELD, OPEN, OVER)), 7, maximise=True)
    count = found.limits[Arm.WINNER]["p99_e2e_ms"]
    assert (count.held, count.open, count.broken, count.runs) == (1, 1, 1, 3)
