"""No trial that is not feasible is ever the best, and no feasible one beats the best."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.recommendation import Recommendation, chosen_trial
from optimizer.core.record import TrialRecord, best_trial
from optimizer.core.scoring import Score, Verdict
from optimizer.core.trial import TrialRole, TrialState


def measured(number: int, state: TrialState, value: float | None, *, maximise: bool = True) -> TrialRecord:
    trial = TrialRecord("s", number, TrialRole.SEARCH, state)
    return trial if value is None else replace(trial, score=Score("m", value, maximise, Verdict.FEASIBLE))


values = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1.0, 2.0])
states = st.just(TrialState.FEASIBLE) | st.sampled_from(TrialState)
histories = st.lists(st.tuples(states, values), max_size=12).map(
    lambda pairs: [measured(number, state, value) for number, (state, value) in enumerate(pairs)]
)


@given(trials=histories, maximise=st.booleans(), reverse=st.booleans())
def test_the_best_is_feasible_and_no_feasible_trial_beats_it(trials, maximise, reverse):
    best = best_trial(trials[::-1] if reverse else trials, maximise=maximise)
    feasible = [t for t in trials if t.state is TrialState.FEASIBLE and t.value is not None and math.isfinite(t.value)]
    if not feasible:
        assert best is None
        return
    assert best is not None
    assert best in feasible
    for other in feasible:
        assert best.value >= other.value if maximise else best.value <= other.value
        assert other.value != best.value or best.number <= other.number, "the earlier of two equals"


@pytest.mark.parametrize("state", [state for state in TrialState if state is not TrialState.FEASIBLE])
@pytest.mark.parametrize(("maximise", "better"), [(True, 1e9), (False, -1e9)])
def test_a_better_value_does_not_make_any_other_state_the_best(state, maximise, better):
    feasible, other = measured(0, TrialState.FEASIBLE, 1.0), measured(1, state, better)
    assert best_trial([feasible, other], maximise=maximise) is feasible
    assert best_trial([other], maximise=maximise) is None


@pytest.mark.parametrize("maximise", [True, False])
def test_of_two_equals_the_earlier_is_the_best(maximise):
    one, other = (measured(number, TrialState.FEASIBLE, 1.0) for number in (3, 4))
    for trials in ([one, other], [other, one]):
        assert best_trial(trials, maximise=maximise) is one


def test_there_is_no_best_of_nothing():
    assert best_trial([], maximise=True) is None


@given(trials=histories, maximise=st.booleans(), number=st.integers(0, 14))
def test_a_recommendation_is_followed_where_its_trial_is_feasible_and_nowhere_else(trials, maximise, number):
    recommendation = Recommendation(number, {}, 0.99, 1.0, 1.0, 1.0, 1, "")
    chosen = chosen_trial(trials, recommendation, maximise=maximise)
    named = next((trial for trial in trials if trial.number == number), None)
    if named is not None and named.state is TrialState.FEASIBLE:
        assert chosen is named
    else:
        assert chosen is best_trial(trials, maximise=maximise)
    assert chosen is None or chosen.state is TrialState.FEASIBLE
    assert chosen_trial(trials, None, maximise=maximise) is best_trial(trials, maximise=maximise)


def test_a_repeat_on_held_out_traffic_is_never_chosen():
    repeat = replace(measured(0, TrialState.FEASIBLE, 5.0), role=TrialRole.CONFIRM)
    assert chosen_trial([repeat], Recommendation(0, {}, 1.0, 5.0, 5.0, 5.0, 1, ""), maximise=True) is None
