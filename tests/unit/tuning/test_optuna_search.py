"""What Optuna is told of a trial, once and only once, and what it makes of it."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import optuna
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from optuna.study import Study
from optuna.trial import Trial
from optuna.trial import TrialState as OptunaState

from optimizer.core.errors import HostError
from optimizer.core.record import TrialRecord, best_trial
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import TrialRole, TrialState
from optimizer.storage.optuna_storage import optuna_storage
from optimizer.tuning.distributions import suggest
from optimizer.tuning.optuna_search import OptunaSearch

METRIC = "output_tokens_per_s"
MEASURED = (TrialState.FEASIBLE, TrialState.INFEASIBLE, TrialState.UNDECIDED)


def limit(verdict, violation, name="p99_e2e_ms"):
    return Constraint(name, 800.0, 700.0, 650.0, None, violation, verdict)


def trial(state, value=None, constraints=(), **fields):
    record = TrialRecord("s", 0, TrialRole.SEARCH, state, metrics={"p99_e2e_ms": 700.12345, "preemptions": None})
    if value is not None:
        verdict = Verdict(state.value) if state in MEASURED else Verdict.UNDECIDED
        record = replace(record, score=Score(METRIC, value, True, verdict, tuple(constraints)))
    return replace(record, **fields)


@pytest.fixture
def opened(bench):
    with bench.search() as search:
        yield search


@pytest.fixture
def in_optuna(store):
    """Optuna's own view of a study, over connections of its own."""
    storage = optuna_storage(store)
    yield lambda name="s": optuna.load_study(study_name=name, storage=storage)
    storage.engine.dispose()


def told(opened, in_optuna, record):
    opened.ask()
    opened.tell(record)
    (frozen,) = in_optuna().get_trials()
    return frozen


# --- one test a state


def test_feasible_is_complete_with_its_value_and_a_constraint_a_limit(opened, in_optuna):
    frozen = told(opened, in_optuna, trial(TrialState.FEASIBLE, 321.5, [limit(Verdict.FEASIBLE, -0.2)]))
    assert (frozen.state, frozen.values) == (OptunaState.COMPLETE, [321.5])
    assert frozen.constraints == {"crash": -1.0, "p99_e2e_ms": -0.2, "undecided": -1.0}


def test_infeasible_is_complete_with_the_limit_violated(opened, in_optuna):
    frozen = told(opened, in_optuna, trial(TrialState.INFEASIBLE, 900.0, [limit(Verdict.INFEASIBLE, 0.7)]))
    assert (frozen.state, frozen.values) == (OptunaState.COMPLETE, [900.0])
    assert frozen.constraints == {"crash": -1.0, "p99_e2e_ms": 0.7, "undecided": -1.0}


def test_undecided_is_complete_and_violates_a_constraint_of_its_own(opened, in_optuna):
    frozen = told(opened, in_optuna, trial(TrialState.UNDECIDED, 900.0, [limit(Verdict.UNDECIDED, None)]))
    assert (frozen.state, frozen.values) == (OptunaState.COMPLETE, [900.0])
    assert frozen.constraints == {"crash": -1.0, "p99_e2e_ms": 0.0, "undecided": 0.01}


@pytest.mark.parametrize(
    ("violation", "crash"), [(0.4, 0.4), (9.0, 1.5), (math.inf, 1.5), (None, 1.0), (math.nan, 1.0), (-1.0, 1.0)]
)
def test_failed_is_pruned_with_the_graded_crash_violated(opened, in_optuna, failure, violation, crash):
    frozen = told(opened, in_optuna, trial(TrialState.FAILED, failure=failure(violation=violation)))
    assert (frozen.state, frozen.values) == (OptunaState.PRUNED, None)
    assert frozen.constraints == {"crash": crash}


def test_rejected_is_pruned_with_the_crash_violated(opened, in_optuna):
    frozen = told(opened, in_optuna, trial(TrialState.REJECTED))
    assert (frozen.state, frozen.constraints) == (OptunaState.PRUNED, {"crash": 1.0})


def test_dominated_is_pruned_with_its_constraints(opened, in_optuna):
    frozen = told(opened, in_optuna, trial(TrialState.DOMINATED, 100.0, [limit(Verdict.UNDECIDED, 0.1)]))
    assert (frozen.state, frozen.values) == (OptunaState.PRUNED, None)
    assert frozen.constraints == {"crash": -1.0, "p99_e2e_ms": 0.1, "undecided": -1.0}


def test_running_and_interrupted_stay_open(opened, in_optuna):
    opened.ask()
    assert opened.open_numbers() == [0]
    assert in_optuna().get_trials()[0].state is OptunaState.RUNNING


# --- the numbers


@pytest.mark.parametrize(("violation", "clipped"), [(7.0, 1.5), (math.inf, 1.5), (0.3, 0.3), (math.nan, 0.01)])
def test_violations_are_finite_and_far_over_is_far_over(opened, in_optuna, violation, clipped):
    frozen = told(opened, in_optuna, trial(TrialState.INFEASIBLE, 1.0, [limit(Verdict.INFEASIBLE, violation)]))
    assert frozen.constraints["p99_e2e_ms"] == clipped


@pytest.mark.parametrize("violation", [-9.0, -math.inf])
def test_far_below_is_far_below(opened, in_optuna, violation):
    frozen = told(opened, in_optuna, trial(TrialState.FEASIBLE, 1.0, [limit(Verdict.FEASIBLE, violation)]))
    assert frozen.constraints["p99_e2e_ms"] == -1.5


def test_every_complete_trial_has_the_same_constraints_in_the_same_order(opened, in_optuna):
    """GPSampler tells constraints apart by their position alone."""
    limits = [limit(Verdict.FEASIBLE, -0.1), limit(Verdict.FEASIBLE, -0.1, "error_rate")]
    for number, (state, order) in enumerate([(TrialState.FEASIBLE, 1), (TrialState.UNDECIDED, -1)]):
        opened.ask()
        opened.tell(replace(trial(state, 1.0, limits[::order]), number=number))
    one, other = in_optuna().get_trials()
    assert list(one.constraints) == list(other.constraints) == ["crash", "error_rate", "p99_e2e_ms", "undecided"]


def test_the_dashboards_columns(opened, in_optuna, failure):
    frozen = told(opened, in_optuna, trial(TrialState.FAILED, failure=failure()))
    assert frozen.user_attrs == {
        "state": "failed",
        "role": "search",
        "failure": "kv_cache_too_small",
        "p99_e2e_ms": 700.123,
    }
    assert in_optuna().metric_names == [METRIC]


def test_a_study_keeps_its_metric_name_when_it_is_opened_again(bench, in_optuna):
    for _ in range(2):
        with bench.search():
            pass
    assert in_optuna().metric_names == [METRIC]


# --- once and only once


def test_told_twice_the_second_is_ignored(opened, in_optuna):
    before = told(opened, in_optuna, trial(TrialState.FEASIBLE, 10.0, [limit(Verdict.FEASIBLE, -0.2)]))
    opened.tell(trial(TrialState.FAILED))
    assert in_optuna().get_trials() == [before]


@pytest.mark.parametrize("constraints_set", [1, 2, 3])
def test_a_tell_that_was_cut_short_is_completed(bench, in_optuna, monkeypatch, constraints_set):
    """The process dies after some constraints, or after all of them and before the tell; then tells once more."""
    calls: list[str] = []
    real_set = Trial.set_constraint

    def set_constraint(self, key, value):
        if len(calls) == constraints_set:
            raise KeyboardInterrupt
        calls.append(key)
        real_set(self, key, value)

    def cut(*args, **kwargs):
        raise KeyboardInterrupt

    record = trial(TrialState.INFEASIBLE, 10.0, [limit(Verdict.INFEASIBLE, 0.2)])
    with bench.search() as search:
        search.ask()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Trial, "set_constraint", set_constraint)
            patch.setattr(Study, "tell", cut)
            search.tell(record)
        assert search.open_numbers() == [0]
    assert len(calls) == constraints_set
    with bench.search() as search:
        search.tell(record)
    (frozen,) = in_optuna().get_trials()
    assert (frozen.state, frozen.values) == (OptunaState.COMPLETE, [10.0])
    assert frozen.constraints == {"crash": -1.0, "p99_e2e_ms": 0.2, "undecided": -1.0}


def test_a_proposal_that_was_cut_short_is_completed_as_it_would_have_been(bench, monkeypatch):
    with OptunaSearch(None, "s", metric=METRIC, maximise=True, sampler=bench.search_sampler()) as unbroken:
        whole = [unbroken.ask() for _ in range(3)][2]
    suggested: list[str] = []

    def suggest_two(live, name, parameter):
        if len(suggested) == 2:
            raise KeyboardInterrupt
        suggested.append(name)
        return suggest(live, name, parameter)

    with bench.search() as search:
        search.ask(), search.ask()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("optimizer.tuning.optuna_search.suggest", suggest_two)
            search.ask()
    with bench.search() as search:
        assert search.open_numbers() == [0, 1, 2]
        assert (2, search.ask_again(2)) == whole
        assert len(search) == 3


# --- never a wrong best

violations = st.none() | st.floats(-3.0, 3.0) | st.sampled_from([0.0, math.nan, math.inf, -math.inf])
limits = st.builds(limit, st.sampled_from(Verdict), violations, st.sampled_from(["p99_e2e_ms", "p99_ttft_ms"]))
measured_trials = st.builds(
    lambda value, constraints: trial(state_of(constraints), value, constraints),
    st.floats(-1e6, 1e6),
    st.lists(limits, max_size=2, unique_by=lambda constraint: constraint.name),
)
other_trials = st.builds(
    trial,
    st.sampled_from([TrialState.FAILED, TrialState.REJECTED, TrialState.DOMINATED, TrialState.INTERRUPTED]),
    st.none() | st.floats(-1e6, 1e6),
    st.lists(limits, max_size=1),
)


def state_of(constraints):
    """A measured trial's state follows from the verdicts of its limits (see `objectives.score`)."""
    verdicts = {constraint.verdict for constraint in constraints}
    worst = next((v for v in (Verdict.INFEASIBLE, Verdict.UNDECIDED) if v in verdicts), Verdict.FEASIBLE)
    return TrialState(worst.value)


@settings(
    max_examples=8,
    phases=[Phase.generate],  # each example is a study on disk: too slow to be made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(records=st.lists(measured_trials | other_trials, min_size=1, max_size=4), maximise=st.booleans())
def test_optunas_best_is_our_best_through_the_whole_chain(bench, store, in_optuna, records, maximise):
    """Recorded in the store, told to Optuna: neither `best_trial` nor `best_trials` is ever a trial not feasible."""
    name = f"s-{len(store.studies())}"
    store.create_study(replace(bench.study, name=name, maximise=maximise))
    with OptunaSearch(store, name, metric=METRIC, maximise=maximise, sampler=bench.search_sampler()) as search:
        for number, record in enumerate(records):
            search.ask()
            numbered = replace(record, study=name, number=number)
            store.put_trial(numbered)
            if numbered.state.is_final:
                search.tell(numbered)
        store.put_trial(TrialRecord(name, len(records), TrialRole.SEARCH, TrialState.RUNNING))
        search.ask()
    ours = best_trial(store.trials(name), maximise=maximise)
    theirs = in_optuna(name)
    if ours is None:
        assert theirs.best_trials == []
        with pytest.raises(ValueError):
            _ = theirs.best_trial
        return
    assert theirs.best_trial.value == ours.value
    for best in (theirs.best_trial, *theirs.best_trials):
        assert records[best.number].state is TrialState.FEASIBLE
        assert best.value == ours.value


# --- a database that fails


@pytest.mark.parametrize(
    "call",
    [
        lambda search: search.ask(),
        lambda search: search.ask_again(0),
        lambda search: search.tell(trial(TrialState.FAILED)),
        lambda search: search.open_numbers(),
        len,
    ],
    ids=["ask", "ask_again", "tell", "open_numbers", "len"],
)
def test_a_lost_database_is_the_hosts_fault(bench, store, call):
    with bench.search() as search:
        search.ask()
        with closing(sqlite3.connect(store.url.database)) as connection:
            connection.execute("ALTER TABLE trials RENAME TO lost")
            connection.commit()
        with pytest.raises(HostError) as caught:
            call(search)
    assert caught.value.exit_code == 4
    assert store.display_url in caught.value.message


def test_a_study_in_memory_says_nothing(bench, capfd):
    with OptunaSearch(None, "s", metric=METRIC, maximise=False, sampler=bench.search_sampler()) as search:
        search.ask()
    assert capfd.readouterr() == ("", "")
