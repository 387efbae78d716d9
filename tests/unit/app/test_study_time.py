"""The estimate, with what the history tells of the study."""

from __future__ import annotations

import pytest

from optimizer.app.request import RunRequest, study_config
from optimizer.app.study_time import study_time
from optimizer.core.errors import InputError
from optimizer.storage import has_history, open_store


def test_nothing_is_created_where_there_is_no_history(tmp_path):
    file = tmp_path / "not" / "there.db"
    time = study_time(study_config(RunRequest(space="tiny-cpu", trials=9)), str(file))
    assert (time.trials, time.timed) == (9, 0)
    assert list(tmp_path.iterdir()) == []


def test_earlier_trials_of_the_study_count(history, sample):
    time = study_time(study_config(RunRequest(space="tiny-cpu", trials=20)), history)
    final = [trial for trial in sample.trials if trial.state.is_final]
    assert time.trials == 20 - len(final)
    assert time.timed == 4, "the measured ones"


def test_those_of_another_study_do_not(history):
    time = study_time(study_config(RunRequest(space="tiny-cpu", study="mine", trials=20)), history)
    assert (time.trials, time.timed) == (20, 0)


def test_a_database_without_a_history_has_none(tmp_path):
    file = tmp_path / "empty.db"
    file.touch()
    assert not has_history(str(file))
    with open_store(str(file)):
        pass
    assert has_history(str(file))


def test_a_wrong_url_is_told(tmp_path):
    with pytest.raises(InputError, match="names no database"):
        has_history(str(tmp_path / "studies.txt"))
