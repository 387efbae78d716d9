"""The runs of a confirmation: their order, their traffic, and that none is made twice."""

from __future__ import annotations

import asyncio

import pytest

from optimizer.core.confirmation import Arm
from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.trial import TrialRole, TrialState
from optimizer.objectives import OBJECTIVES, USUAL_RULES
from optimizer.tuning.attempts import TrialAttempts
from optimizer.tuning.confirmation import ConfirmationRunner, RepeatSettings, held_out_seed

ROLES = {Arm.WINNER: TrialRole.SEARCH, Arm.BASELINE: TrialRole.BASELINE}


@pytest.fixture
async def confirming(bench):
    """A study of three trials whose third is to be confirmed."""
    await bench.run(3)
    bench.pipeline.jobs.clear()
    trials = bench.trials
    repeated = {Arm.WINNER: trials[2], Arm.BASELINE: trials[0]}

    def make() -> ConfirmationRunner:
        settings = {
            arm: RepeatSettings(bench.settings.resolver, bench.settings.device_memory_bytes, role)
            for arm, role in ROLES.items()
        }
        attempts = {
            arm: TrialAttempts(
                bench.store,
                "s",
                seed=held_out_seed(0),
                settings=settings[arm],
                pipeline=bench.pipeline,
                observer=bench.observer,
                start_limit_s=60.0,
            )
            for arm in Arm
        }
        return ConfirmationRunner(
            bench.store,
            bench.study,
            repeated=repeated,
            attempts=attempts,
            settings=settings,
            objective=OBJECTIVES["throughput"],
            limits=(),
            rules=USUAL_RULES,
            observer=bench.observer,
        )

    return make


def confirming_trials(bench):
    return [trial for trial in bench.store.trials("s") if trial.role is TrialRole.CONFIRM]


async def test_the_two_settings_take_turns_on_the_same_held_out_traffic(bench, confirming):
    await confirming().run(3)
    study = bench.store.trials("s")
    baseline, winner = study[0].config, study[2].config
    assert [job.config for job in bench.pipeline.jobs] == [baseline, winner, winner, baseline, baseline, winner]
    assert {job.study_seed for job in bench.pipeline.jobs} == {held_out_seed(0)}
    assert len({job.content_seed for job in bench.pipeline.jobs}) == 6
    assert [trial.number for trial in confirming_trials(bench)] == list(range(1_000_200, 1_000_206))
    assert all(trial.state is TrialState.FEASIBLE and trial.score is not None for trial in confirming_trials(bench))


async def test_what_is_recorded_is_not_made_again(bench, confirming):
    await confirming().run(3)
    before = confirming_trials(bench)
    await confirming().run(3)
    assert (len(bench.pipeline.jobs), confirming_trials(bench)) == (6, before)
    await confirming().run(4)
    assert len(bench.pipeline.jobs) == 8


async def test_an_interrupted_run_is_adopted_under_its_number(bench, confirming, measurement):
    runner = confirming()
    bench.pipeline.answer = lambda job: asyncio.CancelledError() if job.marker == "s/1000201/1" else measurement()
    with pytest.raises(asyncio.CancelledError):
        await runner.run(3)
    assert [trial.state for trial in confirming_trials(bench)] == [TrialState.FEASIBLE, TrialState.INTERRUPTED]
    bench.pipeline.answer = lambda job: measurement()
    await confirming().run(3)
    trials = confirming_trials(bench)
    assert [len(trial.attempts) for trial in trials] == [1, 2, 1, 1, 1, 1]
    assert all(trial.state is TrialState.FEASIBLE for trial in trials)


async def test_a_setting_that_fails_ends_it_and_the_failure_stands(bench, confirming, failure):
    bench.pipeline.answer = lambda job: failure(FailureKind.KV_CACHE_TOO_SMALL)
    await confirming().run(3)
    await confirming().run(3)
    assert [trial.state for trial in confirming_trials(bench)] == [TrialState.FAILED]
    assert len(bench.pipeline.jobs) == 1


async def test_a_host_at_fault_leaves_the_run_for_the_next_time(bench, confirming, failure):
    bench.pipeline.answer = lambda job: failure(FailureKind.HOST_FAULT, Blame.HOST, retryable=True)
    with pytest.raises(HostError, match="3 times in a row"):
        await confirming().run(3)
    assert [trial.state for trial in confirming_trials(bench)] == [TrialState.INTERRUPTED]


async def test_the_search_goes_on_as_if_there_were_no_confirmation(bench, confirming):
    await confirming().run(3)
    assert await bench.run(5) == "trials"
    study = [trial for trial in bench.store.trials("s") if trial.role is not TrialRole.CONFIRM]
    assert [trial.number for trial in study] == [0, 1, 2, 3, 4]
    assert bench.observer.named("opened")[-1] == ("opened", (3, 5)), "the runs of a confirmation are no trials"
    with bench.search() as search:
        assert len(search) == 5


@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, held_out_seed(0)])
def test_the_held_out_seed_is_never_the_studys_own(seed):
    assert held_out_seed(seed) != seed
    assert held_out_seed(seed) == held_out_seed(seed) >= 0
