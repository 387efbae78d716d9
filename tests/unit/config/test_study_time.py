"""The estimate of a study's time: from other machines at first, then from its own trials."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.config import StudyConfig, build_study_config, load_space
from optimizer.config.study_time import (
    COMPILE,
    START_COLD_GPU,
    START_WARM_CPU,
    Span,
    estimate_study_time,
    expected_compilations,
)
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import AttemptRecord, StageTiming, TrialRecord
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.objectives.capacity import MOST_PROBES, MOST_VERDICTS
from tests.unit.conftest import OWNER, START


def config(space: str = "tiny-cpu", **options) -> StudyConfig:
    return build_study_config(load_space(space), **options)


def trial(number: int, *, start: float = 5.0, window: float = 15.0, state: TrialState = TrialState.FEASIBLE):
    spans = ((Stage.LAUNCHING, start), (Stage.WARMING_UP, 2.0), (Stage.MEASURING, window), (Stage.STOPPING, 1.0))
    stages = tuple(StageTiming(stage, START, seconds) for stage, seconds in spans)
    ended = START + timedelta(seconds=sum(seconds for _, seconds in spans))
    attempt = AttemptRecord(1, OWNER, START, ended, "f", stages=stages)
    return TrialRecord("s", number, TrialRole.SEARCH, state, attempts=(attempt,))


def failed(number: int, seconds: float) -> TrialRecord:
    failure = Failure(FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, Blame.CONFIG, "too small")
    stages = (StageTiming(Stage.LAUNCHING, START, seconds),)
    attempt = AttemptRecord(1, OWNER, START, START + timedelta(seconds=seconds), "f", stages=stages, failure=failure)
    return TrialRecord("s", number, TrialRole.SEARCH, TrialState.FAILED, failure=failure, attempts=(attempt,))


def part(time, name: str):
    return next(one for one in time.parts if one.name == name)


def test_before_a_trial_was_timed_the_window_is_known_and_the_rest_is_a_range():
    study = config(trials=24)
    time = estimate_study_time(study)
    assert (time.trials, time.timed) == (24, 0)
    assert part(time, "window").each == Span(study.workload.window.min_s, study.workload.window.max_s)
    assert part(time, "start").each == START_WARM_CPU
    assert time.dominant.name == "window"
    assert time.trial.low_s == pytest.approx(sum(one.each.low_s for one in time.parts))
    assert time.total.low_s == pytest.approx(24 * time.trial.low_s)


def test_a_trial_that_seeks_a_capacity_is_many_loads():
    slos = ("p99_e2e_ms=800",)
    one = estimate_study_time(config(trials=24, slos=slos))
    study = config(trials=24, slos=slos, objective="capacity")
    many = estimate_study_time(study)
    window = study.workload.window
    loads = part(many, f"windows at up to {MOST_PROBES + MOST_VERDICTS} rates")
    assert loads.each.low_s == 2 * window.min_s, "at least the saturated engine and one rate"
    assert loads.each.high_s == pytest.approx((1 + MOST_PROBES) * window.min_s + MOST_VERDICTS * window.max_s)
    assert many.dominant == loads
    assert part(many, "ramps and drains").each.low_s == 2 * part(one, "ramp and drain").each.low_s
    assert many.trial.low_s > one.trial.low_s
    assert many.total.middle_s > 3 * one.total.middle_s
    assert part(many, "start") == part(one, "start")
    timed = estimate_study_time(study, [trial(0), trial(1), trial(2)])
    assert timed.trial == Span(23.0, 23.0), "its own trials know how many loads they made"


def test_an_eager_engine_never_compiles_and_another_does():
    assert not [one for one in estimate_study_time(config("tiny-cpu")).parts if one.name == "compilation"]
    time = estimate_study_time(config("qwen13b", trials=40))
    compilation = part(time, "compilation")
    assert part(time, "start").each == START_COLD_GPU
    assert compilation.total.high_s > 30 * COMPILE.high_s, "qwen13b has far more settings than 40"
    assert time.total.high_s == pytest.approx(sum(one.total.high_s for one in time.parts))
    assert not [
        one
        for one in estimate_study_time(config("qwen13b", set_flags=("optimization-level=0",))).parts
        if one.name == "compilation"
    ]


def test_few_settings_are_compiled_once_each():
    fixed = ("max-num-seqs=64", "max-num-batched-tokens=4096", "max-model-len=8192", "max-cudagraph-capture-size=64")
    study = config("qwen13b", trials=40, set_flags=fixed)
    # Block size (3) x speculation (2) x guesses (5) x async scheduling (2) are left: 60 settings.
    fewest, most = expected_compilations(study, 40)
    assert most == pytest.approx(2 + 60 * (1 - (59 / 60) ** 38))
    assert 1 < fewest < most


def test_a_study_without_compiled_parameters_compiles_for_its_first_trials_alone():
    space = load_space("qwen13b")
    study = config("qwen13b")
    kept = {"gpu-memory-utilization": space.parameters["gpu-memory-utilization"]}
    study = replace(study, space=replace(study.space, parameters=kept))
    assert expected_compilations(study, 40) == (1.5, 3)
    assert expected_compilations(study, 2) == (1, 2)
    assert expected_compilations(study, 0) == (0, 0)


def test_trials_of_the_study_replace_the_figures_of_other_machines():
    study = config(trials=10)
    done = [trial(0, window=15), trial(1, window=17), trial(2, window=19)]
    before, after = estimate_study_time(study, done[:2]), estimate_study_time(study, done)
    assert (before.timed, after.timed) == (0, 3)
    assert after.trials == 7
    assert after.trial == Span(23.0, 27.0)
    # Mean 25 s, standard deviation 2 s: 7 further trials are within 2 x 2 s x sqrt(7 + 49 / 3) of 175 s.
    off = 4 * math.sqrt(7 + 49 / 3)
    assert after.total.low_s == pytest.approx(max(7 * 23, 175 - off))
    assert after.total.high_s == pytest.approx(175 + off)
    assert after.dominant.name == "ramp, window and drain"


def test_failed_trials_count_in_the_total_and_not_in_the_window():
    done = [trial(0), trial(1), trial(2), failed(3, 4.0), failed(4, 6.0)]
    time = estimate_study_time(config(trials=15), done)
    assert (time.timed, time.trials) == (3, 10)
    assert time.trial == Span(4.0, 23.0)
    assert 10 * 4.0 <= time.total.low_s < 10 * (3 * 23.0 + 10.0) / 5 < time.total.high_s
    assert part(time, "ramp, window and drain").each == Span(15.0, 15.0)


def test_a_trial_that_still_runs_is_one_to_run():
    done = [trial(0), trial(1, state=TrialState.INTERRUPTED)]
    assert estimate_study_time(config(trials=5), done).trials == 4


def test_nothing_is_left_of_a_finished_study():
    time = estimate_study_time(config(trials=3), [trial(number) for number in range(4)])
    assert (time.trials, time.total) == (0, Span(0.0, 0.0))


def test_a_cold_start_and_a_longer_window_cost_more():
    study = config()
    cold = replace(study, engine=study.engine.model_copy(update={"warm_start": False}))
    window = study.workload.window.model_copy(update={"max_s": 200.0})
    longer = replace(study, workload=study.workload.model_copy(update={"window": window}))
    time = estimate_study_time(study).total
    assert estimate_study_time(cold).total.low_s > time.low_s
    assert estimate_study_time(longer).total.high_s > time.high_s
    simulated = replace(study, engine=study.engine.model_copy(update={"kind": "simulated"}))
    assert estimate_study_time(simulated).total.low_s < time.low_s


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=20), st.integers(1, 100))
def test_the_range_holds_the_mean_and_never_falls_below_the_shortest(windows, left):
    done = [trial(number, window=window) for number, window in enumerate(windows)]
    time = estimate_study_time(config(trials=len(done) + left), done)
    mean = left * (8 + sum(windows) / len(windows))
    assert left * time.trial.low_s <= time.total.low_s + 1e-3
    assert time.total.low_s - 1e-3 <= mean <= time.total.high_s + 1e-3
