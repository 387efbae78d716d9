from __future__ import annotations

import math

import pytest

from optimizer.core.trial import TrialState
from optimizer.storage.dashboard_records import (
    LARGEST_VIOLATION,
    REFRESH_S,
    ShownRecords,
    ShownStudy,
    shown_constraints,
    with_notes,
)

FEASIBLE, INFEASIBLE, UNDECIDED, RUNNING = (
    TrialState.FEASIBLE,
    TrialState.INFEASIBLE,
    TrialState.UNDECIDED,
    TrialState.RUNNING,
)


@pytest.mark.parametrize(
    ("told", "state", "shown"),
    [
        ({}, None, []),
        ({"b": 0.5, "a": -1.0}, None, [-1.0, 0.5]),
        ({"a": math.inf, "b": -math.inf}, None, [LARGEST_VIOLATION, -LARGEST_VIOLATION]),
        ({"a": 0.5}, RUNNING, [0.5]),
        ({"a": -0.5}, FEASIBLE, [-0.5]),
        ({"a": 0.01}, FEASIBLE, [0.0]),
        ({"a": 0.5}, INFEASIBLE, [0.5]),
        ({"a": -0.5}, UNDECIDED, [-0.5, 1.0]),
        ({}, TrialState.FAILED, [1.0]),
        ({}, TrialState.INTERRUPTED, []),
    ],
)
def test_the_record_has_the_last_word_on_feasibility(records, told, state, shown):
    trial = None if state is None else records.trial(0, state)
    assert shown_constraints(told, trial) == shown


def test_notes_are_those_of_the_records_and_join_what_others_wrote(records):
    shown = ShownStudy("output_tokens_per_s", {}, None, "study", {0: "zero", 1: "one"})
    theirs = {"dashboard:7:note_ver": 4, "dashboard:7:note_str:0": "my ", "dashboard:7:note_str:1": "words", "other": 1}
    assert with_notes(theirs, shown, {6: 0, 7: 1, 8: 2}) == {
        "study:metric_names": ["output_tokens_per_s"],
        "other": 1,
        "dashboard:note_ver": 1,
        "dashboard:note_str:0": "study",
        "dashboard:6:note_ver": 1,
        "dashboard:6:note_str:0": "zero",
        "dashboard:7:note_ver": 5,
        "dashboard:7:note_str:0": "one\n\n---\n\nmy words",
    }


def test_names_of_metrics_that_optuna_has_are_kept():
    shown = ShownStudy("output_tokens_per_s", {}, None, "", {})
    assert with_notes({"study:metric_names": ["tok/s"]}, shown, {})["study:metric_names"] == ["tok/s"]


def test_records_are_read_again_once_they_are_old_and_final_notes_are_made_once(store, records):
    now_s = [100.0]
    made: list[int] = []

    def note_of(trial):
        made.append(trial.number)
        return f"{trial.number} {trial.state.value}"

    shown = ShownRecords(store, note_of, lambda study, trials: f"{len(trials)} trials", clock_s=lambda: now_s[0])
    store.put_trial(records.trial(0, FEASIBLE, 10.0))
    store.put_trial(records.trial(1))

    def notes():
        found = shown.study("tiny")
        assert found is not None
        return found.note, dict(found.trial_notes), found.best

    assert notes() == ("2 trials", {0: "0 feasible", 1: "1 running"}, 0)
    store.put_trial(records.trial(1, FEASIBLE, 20.0))
    now_s[0] += REFRESH_S / 2
    assert notes() == ("2 trials", {0: "0 feasible", 1: "1 running"}, 0)
    now_s[0] += REFRESH_S / 2
    assert notes() == ("2 trials", {0: "0 feasible", 1: "1 feasible"}, 1)
    assert made == [0, 1, 1]


def test_a_study_that_only_optuna_knows_is_none(store):
    assert ShownRecords(store, lambda trial: "", lambda study, trials: "").study("theirs") is None
