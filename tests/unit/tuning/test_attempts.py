"""One trial to its end: which failures get another attempt, and what is recorded of each."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.record import AttemptRecord, StageTiming, TrialRecord
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.host.processes import own_identity
from optimizer.tuning.attempts import OutOfTime, Trouble, content_seed
from optimizer.tuning.trial_pipeline import AttemptOutcome

HOST_FAULT = (FailureKind.HOST_FAULT, Blame.HOST)


@pytest.fixture
def trial(bench) -> TrialRecord:
    record = TrialRecord("s", 4, TrialRole.SEARCH, TrialState.RUNNING, {"block-size": 32, "engine-memory": 2.0})
    bench.store.put_trial(record)
    return record


def plays(bench, *answers):
    """The attempts come to these, one after another."""
    script = iter(answers)
    bench.pipeline.answer = lambda job: next(script)


def recorded(bench) -> TrialRecord:
    return bench.store.trial("s", 4)


async def test_a_measurement_ends_the_trial_at_once(bench, trial, measurement):
    plays(bench, measurement(123.0))
    record, outcome = await bench.attempts().run(trial)
    assert outcome.measurement.load.window_output_tokens == 1230
    assert record.config.flags == {"block-size": 32, "gpu-memory-utilization": 0.25}
    assert recorded(bench).state is TrialState.RUNNING, "the caller scores it"


async def test_the_remarks_of_each_attempt_are_kept_with_its_number(bench, trial, measurement, failure):
    plays(
        bench,
        AttemptOutcome(failure=failure(*HOST_FAULT, retryable=True), notes=("the card was full",)),
        AttemptOutcome(measurement(), notes=("the card was free",)),
    )
    record, _ = await bench.attempts().run(trial)
    assert record.notes == ("attempt 1: the card was full", "attempt 2: the card was free")
    assert recorded(bench).notes == record.notes


async def test_an_attempt_is_recorded_with_all_that_is_known_of_it(bench, trial, failure):
    plays(bench, failure())
    await bench.attempts().run(trial)
    (attempt,) = recorded(bench).attempts
    assert (attempt.number, attempt.owner) == (1, own_identity())
    assert attempt.argv == ("python", "-m", "server", "--port", "1")
    assert [timing.stage for timing in attempt.stages] == [Stage.LAUNCHING, Stage.MEASURING, Stage.STOPPING]
    assert all(timing.duration_s is not None for timing in attempt.stages)
    assert attempt.ended_at >= attempt.started_at
    assert attempt.failure == failure()
    assert Path(attempt.folder) == bench.store.base_folder / "s" / "trial-0004" / "attempt-1"
    assert attempt.folder == str(bench.pipeline.jobs[0].folder)
    assert recorded(bench).config == bench.pipeline.jobs[0].config


async def test_a_job_says_what_the_attempt_needs(bench, trial, failure):
    plays(bench, failure(*HOST_FAULT, retryable=True), failure())
    await bench.attempts().run(trial)
    one, two = bench.pipeline.jobs
    assert (one.marker, two.marker) == ("s/4/1", "s/4/2")
    assert one.expected_memory_gib == 2.0
    assert one.folder != two.folder
    assert one.study_seed == two.study_seed == 0
    assert one.content_seed != two.content_seed, "no attempt feeds another's prefix cache"
    assert one.start_limit_s == 60.0


def test_content_seeds_differ_and_repeat():
    places = [(study, trial, attempt) for study in "ab" for trial in range(20) for attempt in range(1, 4)]
    seeds = [content_seed(0, *place) for place in places]
    assert len(set(seeds)) == len(places)
    assert seeds == [content_seed(0, *place) for place in places]


@pytest.mark.parametrize(
    ("kind", "blame", "retryable", "attempts"),
    [
        (FailureKind.HOST_FAULT, Blame.HOST, True, 3),
        (FailureKind.PORT_TAKEN, Blame.HOST, True, 3),
        (FailureKind.GPU_BUSY, Blame.HOST, False, 1),
        (FailureKind.UNKNOWN, Blame.CONFIG, True, 2),
        (FailureKind.ERROR_RATE, Blame.CONFIG, True, 2),
        (FailureKind.KV_CACHE_TOO_SMALL, Blame.CONFIG, False, 1),
        (FailureKind.REJECTED_FLAG, Blame.CONFIG, False, 1),
    ],
)
async def test_how_often_a_failure_is_tried_again(bench, trial, failure, kind, blame, retryable, attempts):
    bench.pipeline.answer = lambda job: failure(kind, blame, retryable=retryable)
    result = await bench.attempts().run(trial)
    assert len(bench.pipeline.jobs) == attempts
    assert [a.failure.kind for a in recorded(bench).attempts] == [kind] * attempts
    if blame is Blame.HOST:
        assert result == Trouble(failure(kind, blame, retryable=retryable), attempts)
    else:
        record, outcome = result
        assert outcome.failure.kind is kind
        assert record.state is TrialState.RUNNING
    retries = [(4, kind.value, n < attempts) for n in range(1, attempts + 1)]
    assert [what for _, what in bench.observer.named("failed")] == retries


async def test_a_fault_of_the_host_that_passes_does_no_harm(bench, trial, failure, measurement):
    plays(bench, *[failure(*HOST_FAULT, retryable=True)] * 2, measurement())
    _, outcome = await bench.attempts().run(trial)
    assert outcome.failure is None
    assert [a.failure is None for a in recorded(bench).attempts] == [False, False, True]


async def test_faults_of_the_host_do_not_use_up_the_chances_of_a_setting(bench, trial, failure, measurement):
    unlucky = failure(FailureKind.UNKNOWN, retryable=True)
    plays(bench, failure(*HOST_FAULT, retryable=True), unlucky, failure(*HOST_FAULT, retryable=True), measurement())
    _, outcome = await bench.attempts().run(trial)
    assert outcome.failure is None
    assert len(bench.pipeline.jobs) == 4


async def test_only_faults_of_the_host_in_a_row_count(bench, trial, failure):
    fault, unlucky = failure(*HOST_FAULT, retryable=True), failure(FailureKind.UNKNOWN, retryable=True)
    plays(bench, fault, fault, unlucky, fault, fault, fault)
    assert await bench.attempts().run(trial) == Trouble(fault, 3)
    assert len(bench.pipeline.jobs) == 6


async def test_faults_of_the_host_in_a_row_count_across_trials(bench, trial, failure):
    """The trial before ended in a fault that its cards could be blamed for, and was not tried again."""
    fault = failure(*HOST_FAULT, retryable=True)
    attempts = bench.attempts()
    plays(bench, replace(fault, retryable=False), fault, fault)
    assert isinstance(await attempts.run(trial), Trouble)
    other = replace(trial, number=5)
    bench.store.put_trial(other)
    assert await attempts.run(other) == Trouble(fault, 3)
    assert len(bench.pipeline.jobs) == 3


@pytest.mark.parametrize("blame", list(Blame))
async def test_a_retry_for_which_there_is_no_time_is_left_to_the_next_run(bench, trial, failure, blame):
    fault = failure(FailureKind.UNKNOWN, blame, retryable=True)
    plays(bench, fault)
    assert await bench.attempts().run(trial, has_time=lambda: False) == OutOfTime(fault)
    assert bench.observer.named("failed") == [("failed", (4, "unknown", False))]


async def test_a_failure_that_is_final_needs_no_more_time(bench, trial, failure):
    plays(bench, failure())
    _, outcome = await bench.attempts().run(trial, has_time=lambda: False)
    assert outcome.failure == failure()


def started(bench, launching_s: float) -> None:
    """An earlier trial of the study, of an earlier run perhaps, took so long to be ready."""
    bench.store.put_trial(TrialRecord("s", 3, TrialRole.SEARCH, TrialState.RUNNING))
    now = datetime.now(UTC)
    stages = (StageTiming(Stage.LAUNCHING, now, launching_s), StageTiming(Stage.WARMING_UP, now, 1.0))
    bench.store.begin_attempt("s", 3, AttemptRecord(1, own_identity(), now, now, "f"))
    bench.store.put_attempt("s", 3, AttemptRecord(1, own_identity(), now, now, "f", stages=stages))


async def test_the_deadline_of_a_start_is_learned_from_the_record(bench, trial, measurement):
    started(bench, 2.0)
    bench.start_limit_s = 900.0
    plays(bench, measurement())
    await bench.attempts().run(trial)
    assert bench.pipeline.jobs[0].start_limit_s == 60.0


async def test_a_start_too_slow_for_the_learned_deadline_gets_the_configured_one(bench, trial, failure):
    started(bench, 30.0)
    bench.start_limit_s = 900.0
    timeout = failure(FailureKind.STARTUP_TIMEOUT)
    plays(bench, timeout, timeout)
    _, outcome = await bench.attempts().run(trial)
    assert [job.start_limit_s for job in bench.pipeline.jobs] == [120.0, 900.0]
    assert [attempt.failure.retryable for attempt in recorded(bench).attempts] == [True, False]
    assert outcome.failure == timeout


async def test_memory_is_turned_into_a_fraction_anew_for_each_attempt(bench, trial, failure, measurement):
    """The engine took another share than declared, since the host's total changed meanwhile: the retry knows it."""
    sizes = iter([8 * 2**30, 16 * 2**30])
    bench.settings = type(bench.settings)(bench.settings.resolver, lambda: next(sizes))
    plays(bench, failure(*HOST_FAULT, retryable=True), measurement())
    record, _ = await bench.attempts().run(trial)
    fractions = [job.config.flags["gpu-memory-utilization"] for job in bench.pipeline.jobs]
    assert fractions == [0.25, 0.125]
    assert record.config == recorded(bench).config == bench.pipeline.jobs[1].config


async def test_attempts_are_numbered_on_from_earlier_runs(bench, trial, failure):
    plays(bench, *[failure(*HOST_FAULT, retryable=True)] * 3, failure())
    await bench.attempts().run(trial)
    await bench.attempts().run(trial)
    assert [attempt.number for attempt in recorded(bench).attempts] == [1, 2, 3, 4]
    assert Path(recorded(bench).attempts[3].folder).name == "attempt-4"


@pytest.mark.parametrize("error", [HostError("no free port"), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_an_attempt_that_is_broken_off_is_closed(bench, trial, error):
    plays(bench, error)
    with pytest.raises(type(error)):
        await bench.attempts().run(trial)
    (attempt,) = recorded(bench).attempts
    assert attempt.ended_at is not None
    assert attempt.failure is None
    assert all(timing.duration_s is not None for timing in attempt.stages)


async def test_a_stage_left_open_is_closed_with_the_attempt(bench, trial, monkeypatch):
    async def no_port(job, clock, **callbacks):
        clock.enter(Stage.LAUNCHING)
        raise HostError("no free port")

    monkeypatch.setattr(bench.pipeline, "run", no_port)
    with pytest.raises(HostError):
        await bench.attempts().run(trial)
    (timing,) = recorded(bench).attempts[0].stages
    assert timing.duration_s is not None


async def test_the_observer_hears_of_a_trial_before_its_stages(bench, trial, measurement):
    plays(bench, measurement())
    await bench.attempts().run(trial)
    assert bench.observer.events == [
        ("started", (4, 1)),
        ("stage", (4, "launching")),
        ("stage", (4, "measuring")),
        ("progress", (4, 5, 1.0, 10.0)),
        ("stage", (4, "stopping")),
    ]
