"""The numbers of confirming trials, and that none of them is ever the best."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.confirmation import (
    FIRST_NUMBER,
    MOST_REPEATS,
    Arm,
    arm_of,
    confirmation_number,
    confirmation_trials,
    confirmed_trial,
    run_of,
    study_trials,
)
from optimizer.core.record import TrialRecord, best_trial
from optimizer.core.scoring import Score, Verdict
from optimizer.core.trial import TrialRole, TrialState


@given(st.integers(0, 20_000), st.integers(0, 2 * MOST_REPEATS - 1))
def test_a_number_tells_winner_and_run(winner, run):
    number = confirmation_number(winner, run)
    assert (confirmed_trial(number), run_of(number)) == (winner, run)
    assert number >= FIRST_NUMBER


@given(st.integers(0, 500), st.integers(0, 99), st.integers(0, 500), st.integers(0, 99))
def test_no_two_runs_share_a_number(winner, run, other, other_run):
    same = confirmation_number(winner, run) == confirmation_number(other, other_run)
    assert same == ((winner, run) == (other, other_run))


@pytest.mark.parametrize("run", [-1, 100])
def test_a_run_beyond_the_block_is_a_fault(run):
    with pytest.raises(ValueError, match="does not lie in"):
        confirmation_number(7, run)


@pytest.mark.parametrize("repeats", range(1, MOST_REPEATS + 1))
def test_each_setting_runs_as_often_as_the_other(repeats):
    order = [arm_of(run) for run in range(2 * repeats)]
    assert order.count(Arm.WINNER) == order.count(Arm.BASELINE) == repeats


def test_a_drift_that_is_even_over_four_runs_falls_on_both_alike():
    order = [arm_of(run) for run in range(4)]
    places = {arm: sum(run for run, one in enumerate(order) if one is arm) for arm in Arm}
    assert places[Arm.WINNER] == places[Arm.BASELINE]


def record(number: int, role: TrialRole, state: TrialState, value: float | None) -> TrialRecord:
    score = None if value is None else Score("output_tokens_per_s", value, True, Verdict.FEASIBLE)
    return TrialRecord("s", number, role, state, score=score)


RECORDS = st.builds(
    record,
    st.integers(0, 2_000_000),
    st.sampled_from(TrialRole),
    st.sampled_from(TrialState),
    st.none() | st.floats(-1e9, 1e9) | st.just(math.nan),
)


@given(st.lists(RECORDS, max_size=12), st.booleans())
def test_the_best_trial_is_the_same_whether_or_not_there_are_confirmations(trials, maximise):
    best = best_trial(trials, maximise=maximise)
    assert best is best_trial(study_trials(trials), maximise=maximise)
    assert best is None or best.role is not TrialRole.CONFIRM


def test_the_trials_of_one_confirmation_in_order():
    trials = [record(confirmation_number(w, r), TrialRole.CONFIRM, TrialState.FEASIBLE, 1.0) for w, r in
              ((7, 1), (3, 0), (7, 0))]  # fmt: skip
    trials.append(record(7, TrialRole.SEARCH, TrialState.FEASIBLE, 1.0))
    assert [trial.number for trial in confirmation_trials(trials, 7)] == [1_000_700, 1_000_701]
