"""Every stage is timed once, in order, and told when it begins and when the last one ends."""

from __future__ import annotations

from datetime import timedelta

from optimizer.core.record import StageTiming
from optimizer.core.trial import Stage
from optimizer.tuning.stage_clock import StageClock


def shape(stages):
    return [(timing.stage, timing.duration_s is not None) for timing in stages]


def test_a_stage_ends_when_the_next_begins():
    told = []
    clock = StageClock(lambda stages: told.append(shape(stages)))
    clock.enter(Stage.LAUNCHING)
    assert clock.stage.value == "launching"
    clock.enter(Stage.STOPPING)
    clock.end()
    assert told == [
        [(Stage.LAUNCHING, False)],
        [(Stage.LAUNCHING, True), (Stage.STOPPING, False)],
        [(Stage.LAUNCHING, True), (Stage.STOPPING, True)],
    ]
    assert clock.stage.value == "stopping", "the last one, when none runs"


def test_entering_the_running_stage_again_changes_nothing():
    told: list[tuple[StageTiming, ...]] = []
    clock = StageClock(told.append)
    clock.enter(Stage.LAUNCHING)
    clock.enter(Stage.LAUNCHING)
    assert shape(clock.stages) == [(Stage.LAUNCHING, False)]
    assert len(told) == 1
    clock.end()
    clock.enter(Stage.LAUNCHING)
    assert shape(clock.stages) == [(Stage.LAUNCHING, True), (Stage.LAUNCHING, False)], "once ended, it is another one"


def test_ending_twice_or_before_the_beginning_tells_nothing():
    told: list[tuple[StageTiming, ...]] = []
    clock = StageClock(told.append)
    clock.end()
    assert told == []
    clock.enter(Stage.LAUNCHING)
    clock.end()
    clock.end()
    assert len(told) == 2


def test_durations_are_the_time_between_and_starts_are_utc(monkeypatch):
    times = iter([10.0, 12.5, 12.5, 20.0])
    monkeypatch.setattr("optimizer.tuning.stage_clock.time.monotonic", lambda: next(times))
    clock = StageClock(lambda stages: None)
    clock.enter(Stage.LAUNCHING)
    clock.enter(Stage.MEASURING)
    clock.end()
    assert [timing.duration_s for timing in clock.stages] == [2.5, 7.5]
    assert all(timing.started_at.utcoffset() == timedelta(0) for timing in clock.stages)
