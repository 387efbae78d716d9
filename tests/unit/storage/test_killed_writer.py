"""A writer that is killed at any instant leaves a whole history: all that it told of, and nothing in halves."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from optimizer.core.trial import TrialState
from optimizer.storage import open_store

WRITER = """
import dataclasses, itertools, sys
from datetime import UTC, datetime
from optimizer.core.record import AttemptRecord, ProcessIdentity, StageTiming, StudyRecord, TrialRecord
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.storage import open_store

now = datetime.now(UTC)
store = open_store(sys.argv[1])
store.create_study(StudyRecord("tiny", now, {}, {}, "output_tokens_per_s", True))

def said(number, step):
    print(number, step, flush=True)

for number in itertools.count():
    trial = TrialRecord("tiny", number, TrialRole.SEARCH, TrialState.RUNNING, params={"max-num-seqs": number})
    attempt = AttemptRecord(1, ProcessIdentity("box", "b", 1, 1), now, None, "f", argv=("x" * 5000,))
    store.put_trial(trial)
    said(number, "begun")
    store.begin_attempt("tiny", number, attempt)
    said(number, "attempted")
    store.put_attempt("tiny", number, dataclasses.replace(attempt, stages=(StageTiming(Stage.LAUNCHING, now, 1.0),)))
    said(number, "staged")
    store.put_trial(dataclasses.replace(trial, state=TrialState.FEASIBLE, notes=("y" * 5000,)))
    said(number, "done")
"""
STEPS = ("begun", "attempted", "staged", "done")


def kill_after(file, lines: int) -> tuple[int, str]:
    """Kill a writer at some instant after it has told of so many writes; give the last one it told of."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(lines):
        assert writer.stdout.readline()
    writer.kill()
    told = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.stdout.close()
    writer.wait()
    assert writer.returncode == -9
    if not told:
        return divmod(lines - 1, len(STEPS))[0], STEPS[(lines - 1) % len(STEPS)]
    number, step = told[-1].split()
    return int(number), step


def progress(trial) -> str:
    """The last step whose effects a record shows; a record that fits no step is an error."""
    assert trial.params == {"max-num-seqs": trial.number}
    if trial.state is TrialState.FEASIBLE:
        assert trial.notes == ("y" * 5000,)
        assert trial.attempts[0].stages[0].duration_s == 1.0
        return "done"
    assert (trial.state, trial.notes) == (TrialState.RUNNING, ())
    if not trial.attempts:
        return "begun"
    assert trial.attempts[0].argv == ("x" * 5000,)
    return "staged" if trial.attempts[0].stages else "attempted"


@pytest.mark.parametrize("lines", [1, 38, 79, 120])
def test_a_killed_writer_leaves_all_that_it_had_written(file, lines):
    number, step = kill_after(file, lines)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    with open_store(str(file), must_exist=True) as store:
        trials = store.trials("tiny")
        assert [trial.number for trial in trials] == list(range(len(trials)))
        assert {progress(trial) for trial in trials[:-1]} <= {"done"}
        written = 4 * (len(trials) - 1) + STEPS.index(progress(trials[-1]))
        told = 4 * number + STEPS.index(step)
        assert written - told in (0, 1)
        unfinished = [trial.number for trial in trials if trial.state is TrialState.RUNNING]
        assert [trial.number for trial in store.mark_interrupted("tiny", lambda owner: False)] == unfinished
