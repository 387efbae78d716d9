"""Runs that the client spoiled are tried again with more load processes, and the setting is not blamed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.core.client_health import ClientHealth
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.record import TrialRecord
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.load.failure import ClientSpoiled
from optimizer.objectives import parse_slo
from optimizer.tuning.attempts import Trouble
from optimizer.tuning.client_faults import check_client, client_failure, more_processes, tightest_limit_ms

SPOILED = client_failure(ClientSpoiled("late"), Stage.MEASURING)


@pytest.fixture
def trial(bench) -> TrialRecord:
    record = TrialRecord("s", 4, TrialRole.SEARCH, TrialState.RUNNING, {"block-size": 32, "engine-memory": 2.0})
    bench.store.put_trial(record)
    return record


async def test_each_attempt_has_twice_the_processes_and_later_trials_keep_them(bench, trial, measurement):
    script = iter([SPOILED, SPOILED, measurement(), measurement()])
    bench.pipeline.answer = lambda job: next(script)
    attempts = bench.attempts()
    for _ in range(2):
        _, outcome = await attempts.run(trial)
        assert outcome.measurement is not None
    assert [job.processes for job in bench.pipeline.jobs] == [1, 2, 4, 4]


async def test_a_client_that_never_keeps_up_is_the_hosts_fault(bench, trial):
    bench.pipeline.answer = lambda job: SPOILED
    trouble = await bench.attempts().run(trial)
    assert isinstance(trouble, Trouble)
    assert trouble.failure.blame is Blame.HOST
    assert [job.processes for job in bench.pipeline.jobs] == [1, 2, 4]


def test_other_failures_need_no_more_processes(failure):
    assert more_processes(failure(FailureKind.HOST_FAULT, Blame.HOST), 2) == 2


def test_a_late_client_is_found_in_what_was_measured(measurement):
    load = replace(measurement().load, client=ClientHealth(30.0, 1.0, 0.8, 0.8, 1))
    with pytest.raises(ClientSpoiled, match="event loop"):
        check_client(load, 500.0)
    check_client(load, 1000.0)
    check_client(load, None)
    check_client(measurement().load, 0.001)


def test_the_tightest_limit_is_the_least_of_those_that_are_known():
    slos = [parse_slo(text, origin="--slo") for text in ("p99_e2e_ms=800", "p99_ttft<=1.5x")]
    assert tightest_limit_ms(slos, {}) == 800
    assert tightest_limit_ms(slos, {"p99_ttft_ms": 100.0}) == 150
    assert tightest_limit_ms(slos[1:], {"p99_ttft_ms": None}) is None
