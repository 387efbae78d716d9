"""A small study for the tests of the storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from optimizer.core.record import AttemptRecord, ProcessIdentity, StudyRecord, TrialRecord
from optimizer.core.scoring import Score, Verdict
from optimizer.core.trial import TrialRole, TrialState
from optimizer.storage import StudyStore, open_store

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OWNER = ProcessIdentity(host="box", boot_id="b1", pid=41, start_ticks=990)


class Records:
    """Makes records of one study, `tiny`, whose objective is output tokens per second."""

    study = StudyRecord("tiny", START, {"space": "tiny"}, {}, "output_tokens_per_s", maximise=True)

    def trial(self, number: int, state: TrialState = TrialState.RUNNING, value: float | None = None) -> TrialRecord:
        record = TrialRecord("tiny", number, TrialRole.SEARCH, state)
        if value is None:
            return record
        verdict = Verdict(state.value) if state.value in list(Verdict) else Verdict.UNDECIDED
        return dataclasses.replace(record, score=Score("output_tokens_per_s", value, True, verdict))

    def attempt(self, number: int = 1) -> AttemptRecord:
        return AttemptRecord(number, OWNER, START, None, f"trial/attempt-{number}")


@pytest.fixture(scope="session")
def records() -> Records:
    return Records()


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "studies.db"


@pytest.fixture
def store(file) -> Iterator[StudyStore]:
    with open_store(str(file)) as opened:
        opened.create_study(Records.study)
        yield opened
