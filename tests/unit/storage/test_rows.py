"""Rows of earlier releases are read as what they meant."""

from __future__ import annotations

import json
from typing import cast

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import TrialRecord
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.storage.rows import Row, trial_record, trial_row


def test_a_failure_that_was_recorded_without_numbers_has_none():
    failure = Failure(FailureKind.OUT_OF_MEMORY, Stage.LAUNCHING, Blame.CONFIG, "no memory", ("a line",), 1, 0.5)
    row = trial_row(TrialRecord("s", 2, TrialRole.SEARCH, TrialState.FAILED, failure=failure))
    recorded = json.loads(row["failure"])
    del recorded["phase"], recorded["facts"]
    old = cast(Row, {**row, "failure": json.dumps(recorded)})
    assert trial_record("s", old, ()).failure == failure
