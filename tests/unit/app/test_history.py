from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from optimizer.app.history import read_study
from optimizer.app.show import read_trial
from optimizer.app.status import read_studies
from optimizer.core.errors import InputError
from optimizer.core.record import AttemptRecord, ProcessIdentity, best_trial
from optimizer.core.trial import TrialState
from optimizer.host.processes import identity_of, own_identity
from optimizer.storage import open_store


def test_the_only_study_need_not_be_named(history, sample):
    read = read_study(history, None)
    assert read.study.name == "tiny-cpu"
    assert [trial.state for trial in read.trials] == [trial.state for trial in sample.trials]


def test_of_two_studies_one_must_be_named(history_of_two):
    with pytest.raises(InputError, match="holds 2 studies") as caught:
        read_study(history_of_two, None)
    assert caught.value.hint == "choose with --study: tiny-cpu, other"
    assert read_study(history_of_two, "other").study.name == "other"


def test_an_unknown_study_names_the_known_ones(history):
    with pytest.raises(InputError, match="--study nosuch") as caught:
        read_study(history, "nosuch")
    assert caught.value.hint == "it holds: tiny-cpu"


def test_an_empty_history_has_no_study(tmp_path):
    open_store(str(tmp_path / "empty.db")).close()
    with pytest.raises(InputError, match="there is no study in"):
        read_study(str(tmp_path / "empty.db"), None)
    assert read_studies(str(tmp_path / "empty.db")) == []


def test_reading_never_makes_a_history(tmp_path):
    with pytest.raises(InputError):
        read_studies(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []


def test_every_study_is_read_with_its_trials(history_of_two):
    histories = read_studies(history_of_two)
    assert [history.study.name for history in histories] == ["tiny-cpu", "other"]
    best = [best_trial(history.trials, maximise=True) for history in histories]
    assert [trial.number for trial in best if trial is not None] == [2, 2]


def test_a_trial_comes_with_its_baseline(history):
    shown = read_trial(history, None, 4)
    assert shown.baseline is not None
    assert (shown.trial.number, shown.baseline.number) == (4, 0)
    with pytest.raises(InputError, match="has no trial 99") as caught:
        read_trial(history, None, 99)
    assert caught.value.hint == "its trials: 0 to 7"


def test_a_trial_whose_optimizer_was_killed_is_read_as_interrupted(tmp_path, sample):
    with subprocess.Popen(["true"]) as process:
        killed = identity_of(process.pid)
    owners = [killed, own_identity(), ProcessIdentity("another-host", "b00t", 1, 1)]
    with open_store(str(tmp_path / "studies.db")) as store:
        store.create_study(sample.study)
        for number, owner in enumerate(owners):
            store.put_trial(replace(sample.trials[number], state=TrialState.RUNNING, attempts=(), score=None))
            attempt = AttemptRecord(1, owner, sample.study.created_at, None, "folder")
            store.begin_attempt(sample.study.name, number, attempt)
    read = read_study(str(tmp_path / "studies.db"), None)
    assert [trial.state for trial in read.trials] == [TrialState.INTERRUPTED, TrialState.RUNNING, TrialState.RUNNING]
