"""A study from its first trial to its last, across interruptions, crashes, faults of the host and spent budgets."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from optimizer.core.errors import HostError, InputError
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import AttemptRecord, ProcessIdentity, TrialRecord, best_trial
from optimizer.core.study_end import StudyEnd
from optimizer.core.trial import TrialRole, TrialState
from optimizer.host.processes import boot_id, own_identity
from optimizer.search_spaces import GIB, ChoiceParameter, SearchSpace
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import Settings
from optimizer.tuning.strategies.random_search import RandomSearch

GONE = ProcessIdentity("here", "another boot", 1, 1)
HOST_FAULT = (FailureKind.HOST_FAULT, Blame.HOST)


def number_of(job) -> int:
    return int(job.marker.split("/")[1])


# --- the way of a study


async def test_the_baseline_comes_first_then_the_defaults_then_the_search(bench):
    assert await bench.run(5) == "trials"
    roles = [trial.role for trial in bench.trials]
    assert roles == [TrialRole.BASELINE, TrialRole.DEFAULT, *[TrialRole.SEARCH] * 3]
    assert [trial.number for trial in bench.trials] == [0, 1, 2, 3, 4]
    flags = [dict(trial.config.flags) for trial in bench.trials]
    assert flags[:2] == [{"block-size": 16, "max-num-seqs": 16}, {}]
    assert all(set(trial.params) == set(bench.settings.resolver.space.parameters) for trial in bench.trials[2:])


async def test_a_trial_is_recorded_with_its_metrics_score_and_notes(bench, measurement):
    bench.pipeline.answer = lambda job: measurement(tokens_per_s=250.0)
    bench.slos = ("p99_e2e_ms=800",)
    await bench.run(2)
    trial = bench.trials[0]
    assert (trial.state, trial.value) == (TrialState.FEASIBLE, 250.0)
    assert trial.metrics["preemptions"] == 3.0
    assert [constraint.name for constraint in trial.score.constraints] == ["p99_e2e_ms", "error_rate"]
    assert trial.notes == ("a gauge was missing",)


async def test_the_observer_hears_the_study_in_order(bench):
    await bench.run(2)
    assert bench.observer.named("opened", "started", "finished") == [
        ("opened", (0, 2)),
        ("started", (0, 1)),
        ("finished", (0, "feasible")),
        ("started", (1, 1)),
        ("finished", (1, "feasible")),
    ]


async def test_relative_limits_are_multiples_of_what_the_baseline_measured(bench, measurement):
    latencies = iter([400.0, 700.0, 300.0])
    bench.pipeline.answer = lambda job: measurement(e2e_ms=next(latencies))
    bench.slos = ("p99_e2e<=1.5x",)
    await bench.run(3)
    assert bench.states == ["feasible", "infeasible", "feasible"]
    assert [trial.score.constraints[0].limit for trial in bench.trials] == pytest.approx([600.0] * 3)


async def test_a_failed_setting_is_recorded_and_the_study_goes_on(bench, measurement, failure):
    bench.pipeline.answer = lambda job: failure(violation=0.4) if number_of(job) == 2 else measurement()
    await bench.run(4)
    assert bench.states == ["feasible", "feasible", "failed", "feasible"]
    failed = bench.trials[2]
    assert (failed.failure, failed.score, failed.metrics) == (failure(violation=0.4), None, {})
    assert best_trial(bench.trials, maximise=True).number == 0


async def test_a_study_in_which_everything_fails_runs_to_its_end(bench, failure):
    bench.pipeline.answer = lambda job: failure()
    assert await bench.run(8) == "trials"
    assert bench.states == ["failed"] * 8


# --- total of trials, and time


async def test_the_total_counts_the_trials_of_earlier_runs(bench):
    await bench.run(2)
    await bench.run(5)
    assert len(bench.trials) == len(bench.pipeline.jobs) == 5
    assert bench.observer.named("opened") == [("opened", (0, 2)), ("opened", (2, 5))]


@pytest.mark.parametrize("total", [1, 3])
async def test_a_total_that_is_reached_already_runs_nothing(bench, total):
    await bench.run(3)
    assert await bench.run(total) == "trials"
    assert len(bench.pipeline.jobs) == 3


async def test_a_study_run_in_two_halves_is_the_study_run_at_once(bench, store):
    await bench.run(4)
    await bench.run(9)
    recorded: list[TrialRecord] = []
    sampler = bench.search_sampler(lambda: recorded)
    whole = OptunaSearch(None, "s", metric="output_tokens_per_s", maximise=True, sampler=sampler)
    for trial in bench.trials:
        assert whole.ask() == (trial.number, trial.params)
        recorded.append(trial)
        whole.tell(trial)


async def test_no_trial_is_begun_that_the_time_does_not_hold(bench):
    """Each look at the clock is 10 s later; the guess for the first trial is 15 s."""
    bench.now_s = itertools.count(0.0, 10.0)
    assert await bench.run(20, time_s=24.0, first_trial_s=15.0) == "time_budget"
    assert bench.pipeline.jobs == []
    assert bench.trials == []


async def test_the_longest_attempt_with_a_margin_is_what_a_trial_is_expected_to_take(bench):
    begun = datetime(2026, 3, 1, tzinfo=UTC)
    for number, seconds in enumerate([10, 40, 20]):
        trial = TrialRecord("s", number, TrialRole.SEARCH, TrialState.RUNNING)
        bench.store.put_trial(trial)
        ended = begun.replace(second=seconds)
        bench.store.begin_attempt("s", number, AttemptRecord(1, GONE, begun, ended, "f"))
        bench.store.put_trial(replace(trial, state=TrialState.FAILED))
    with bench.search() as search:
        for _ in range(3):
            search.ask()
    bench.now_s = itertools.repeat(0.0)
    assert await bench.run(4, time_s=45.0) == "time_budget", "40 s and 15 % are 46 s"
    assert await bench.run(4, time_s=46.5) == "trials"


async def test_a_run_out_of_time_is_taken_up_by_the_next(bench):
    bench.now_s = itertools.count(0.0, 10.0)
    assert await bench.run(5, time_s=35.0, first_trial_s=1.0) == "time_budget"
    done = len(bench.trials)
    assert 0 < done < 5
    bench.now_s = None
    assert await bench.run(5) == "trials"
    assert len(bench.trials) == len(bench.pipeline.jobs) == 5


async def test_a_retry_that_the_time_does_not_hold_is_left_to_the_next_run(bench, measurement, failure):
    """Each look at the clock is 10 s later: the trial begins in time, its second attempt would not."""
    bench.now_s = itertools.count(0.0, 10.0)
    bench.pipeline.answer = lambda job: failure(FailureKind.UNKNOWN, retryable=True)
    assert await bench.run(3, time_s=15.0, first_trial_s=1.0) == "time_budget"
    assert (bench.states, len(bench.pipeline.jobs)) == (["interrupted"], 1)
    bench.now_s = None
    bench.pipeline.answer = lambda job: measurement()
    assert await bench.run(3) == "trials"
    assert [len(trial.attempts) for trial in bench.trials] == [2, 1, 1]


# --- what stops a study


async def test_limits_relative_to_a_baseline_that_failed_end_the_study(bench, failure):
    bench.pipeline.answer = lambda job: failure()
    bench.slos = ("p99_e2e<=1.0x",)
    for _ in range(2):
        with pytest.raises(InputError, match=r"the baseline failed \(kv_cache_too_small: .*p99_e2e_ms") as caught:
            await bench.run(4)
        assert "--baseline" in caught.value.hint
        assert bench.states == ["failed"], "recorded, and not run again by the same command"
    assert len(bench.pipeline.jobs) == 1


async def test_absolute_limits_do_without_the_baseline(bench, measurement, failure):
    bench.pipeline.answer = lambda job: failure() if number_of(job) == 0 else measurement()
    bench.slos = ("p99_e2e_ms=800",)
    assert await bench.run(3) == "trials"
    assert bench.states == ["failed", "feasible", "feasible"]


@pytest.mark.parametrize(("number", "origin"), [(0, "the baseline"), (2, "trial 2")])
async def test_a_refused_flag_ends_the_study_and_is_recorded(bench, measurement, failure, number, origin):
    refused = failure(FailureKind.REJECTED_FLAG)
    bench.pipeline.answer = lambda job: refused if number_of(job) == number else measurement()
    with pytest.raises(InputError, match=origin) as caught:
        await bench.run(6)
    assert caught.value.exit_code == 2
    assert refused.detail in caught.value.message
    assert bench.trials[-1].state is TrialState.FAILED
    assert bench.trials[-1].failure == refused
    with bench.search() as search:
        assert search.open_numbers() == [], "told, so that a resume does not run it again"


async def test_a_study_that_ended_in_a_refused_flag_ends_again_without_a_launch(bench, failure):
    bench.pipeline.answer = lambda job: failure(FailureKind.REJECTED_FLAG)
    for _ in range(2):
        with pytest.raises(InputError, match="it is rejected_flag"):
            await bench.run(6)
    assert len(bench.pipeline.jobs) == 1


async def test_faults_of_the_host_end_the_study_and_leave_the_trial_to_the_next_run(bench, measurement, failure):
    fault = failure(*HOST_FAULT, retryable=True)
    bench.pipeline.answer = lambda job: fault if number_of(job) == 2 else measurement()
    with pytest.raises(HostError, match=r"trial 2 .* 3 times in a row; the last: it is host_fault") as caught:
        await bench.run(4)
    assert caught.value.exit_code == 4
    assert bench.states == ["feasible", "feasible", "interrupted"]
    before = bench.trials[2]
    bench.pipeline.answer = lambda job: measurement()
    assert await bench.run(4) == "trials"
    assert bench.states == ["feasible"] * 4
    adopted = bench.trials[2]
    assert adopted.params == before.params
    assert [(a.number, a.failure is None) for a in adopted.attempts] == [(1, False), (2, False), (3, False), (4, True)]


async def test_a_fault_that_is_not_worth_a_retry_is_told_as_it_was(bench, failure):
    bench.pipeline.answer = lambda job: failure(FailureKind.GPU_BUSY, Blame.HOST)
    with pytest.raises(HostError, match=r"trial 0 met a fault of the host once; .*\[the last line\]"):
        await bench.run(4)
    assert bench.states == ["interrupted"]


async def test_a_limit_that_the_baseline_cannot_carry_leaves_nothing_running(bench, measurement):
    """The baseline answered with single tokens, so it has no time per token that a limit could be relative to."""
    one_token = measurement()
    load = replace(one_token.load, output_tokens=one_token.load.output_tokens * 0 + 1)
    bench.pipeline.answer = lambda job: replace(one_token, load=load)
    bench.slos = ("p99_tpot<=1.0x",)
    with pytest.raises(InputError, match="p99_tpot_ms"):
        await bench.run(4)
    assert bench.states == ["interrupted"]


# --- interruptions


async def test_an_interruption_in_the_middle_of_a_trial_is_recorded_and_taken_up(bench, measurement):
    measuring = asyncio.Event()

    async def for_ever():
        measuring.set()
        await asyncio.Event().wait()

    bench.pipeline.answer = lambda job: for_ever() if number_of(job) == 2 else measurement()
    task = asyncio.create_task(bench.run(4))
    await measuring.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.pipeline.engines_up == 0, "the engine was stopped before the run ended"
    assert bench.states == ["feasible", "feasible", "interrupted"]
    interrupted = bench.trials[2]
    assert interrupted.attempts[0].ended_at is not None
    bench.pipeline.answer = lambda job: measurement()
    await bench.run(4)
    assert bench.states == ["feasible"] * 4
    assert bench.trials[2].params == interrupted.params
    assert [attempt.number for attempt in bench.trials[2].attempts] == [1, 2]


async def test_a_crash_between_record_and_tell_is_repaired(bench, monkeypatch):
    def killed(self, trial):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(OptunaSearch, "tell", killed)
        await bench.run(3)
    assert bench.states == ["feasible"]
    with bench.search() as search:
        assert search.open_numbers() == [0]
    await bench.run(3)
    assert bench.states == ["feasible"] * 3
    assert len(bench.pipeline.jobs) == 3, "trial 0 was not run again"
    with bench.search() as search:
        assert (len(search), search.open_numbers()) == (3, [])


async def test_a_crash_between_asking_and_recording_loses_no_number(bench):
    with bench.search() as search:
        asked = [search.ask() for _ in range(3)]
    await bench.run(4)
    assert [(trial.number, dict(trial.params)) for trial in bench.trials[:3]] == asked
    assert len(bench.trials) == 4


@pytest.mark.parametrize("attempts", [0, 1])
async def test_a_running_trial_whose_owner_is_dead_is_adopted(bench, attempts):
    with bench.search() as search:
        number, params = search.ask()
    bench.store.put_trial(TrialRecord("s", number, TrialRole.BASELINE, TrialState.RUNNING, params))
    for attempt in range(attempts):
        bench.store.begin_attempt("s", number, AttemptRecord(attempt + 1, GONE, datetime.now(UTC), None, "f"))
    await bench.run(2)
    assert bench.states == ["feasible", "feasible"]
    assert [a.number for a in bench.trials[0].attempts] == list(range(1, attempts + 2))
    assert bench.trials[0].attempts[-1].owner == own_identity()


async def test_an_owner_is_known_by_more_than_its_pid(bench):
    """A recycled pid of this boot, started at another time, is another process."""
    with bench.search() as search:
        search.ask()
    recycled = replace(own_identity(), start_ticks=own_identity().start_ticks + 1, boot_id=boot_id())
    bench.store.put_trial(TrialRecord("s", 0, TrialRole.BASELINE, TrialState.RUNNING))
    bench.store.begin_attempt("s", 0, AttemptRecord(1, recycled, datetime.now(UTC), None, "f"))
    await bench.run(1)
    assert bench.states == ["feasible"]


async def test_a_database_lost_while_a_trial_is_set_aside_is_the_hosts_fault(bench, monkeypatch):
    def no_space(trial):
        raise HostError("the disk is full")

    def answer(job):
        monkeypatch.setattr(bench.store, "put_trial", no_space)
        return KeyboardInterrupt()

    bench.pipeline.answer = answer
    with pytest.raises(HostError, match="disk is full"):
        await bench.run(2)
    assert bench.pipeline.engines_up == 0


# --- nothing left worth a trial


async def test_a_space_that_was_tried_whole_ends_the_study(bench, resolver):
    """Two settings: baseline, defaults and both of them; any other trial would be a repeat."""
    space = SearchSpace({"block-size": ChoiceParameter(kind="choice", choices=(16, 32))})
    bench.settings = Settings(resolver(space, {"max-num-seqs": 16}), lambda: 8 * GIB)
    assert await bench.run(20) == StudyEnd.EXHAUSTED
    assert [dict(trial.params) for trial in bench.trials[:2]] == [{}, {}]
    assert sorted(trial.params["block-size"] for trial in bench.trials[2:]) == [16, 32]
    assert await bench.run(20) == StudyEnd.EXHAUSTED, "and a resume finds nothing to do"
    assert len(bench.pipeline.jobs) == 4


async def test_a_space_of_one_setting_runs_just_that(bench, resolver):
    space = SearchSpace({"block-size": ChoiceParameter(kind="choice", choices=(16,))})
    bench.settings = Settings(resolver(space, {}), lambda: 8 * GIB)
    assert await bench.run(20) == StudyEnd.EXHAUSTED
    assert [dict(trial.params) for trial in bench.trials] == [{}, {}, {"block-size": 16}]


class Foreseeing:
    """Proposes at random and says what it expects of it."""

    name = "foreseeing"

    def __init__(self, space, gains):
        self._inner = RandomSearch(space)
        self._gains = iter(gains)
        self.expected_gain = None

    def proposals(self, ask):
        for proposal in self._inner.proposals(ask):
            self.expected_gain = next(self._gains)
            yield proposal


@pytest.fixture
def foreseeing(bench, monkeypatch):
    """Makes the study's strategy expect these gains, one a proposal."""

    def make(*gains):
        space = bench.settings.resolver.space
        strategy = Foreseeing(space, gains)
        sampler = RuleKeepingSampler(
            space,
            bench.settings.broken_rules,
            fixed=bench.settings.fixed_proposals(),
            seed=0,
            strategy=strategy,
            records=lambda: bench.trials,
            flips=False,
        )
        monkeypatch.setattr(bench, "search_sampler", lambda: sampler)

    return make


async def test_a_study_ends_when_several_proposals_in_a_row_promise_too_little(bench, foreseeing):
    foreseeing(0.2, 0.001, 0.05, 0.009, 0.0, 0.002, 0.3)
    assert await bench.run(20, least_gain=0.01) == StudyEnd.LITTLE_GAIN
    assert len(bench.trials) == 2 + 6
    assert await bench.run(20, least_gain=0.01) == StudyEnd.LITTLE_GAIN, "another process comes to the same end"
    assert len(bench.trials) == 2 + 6


async def test_what_cannot_be_foreseen_ends_no_study(bench, foreseeing):
    foreseeing(*[None] * 4, 0.001, None, 0.001, None, 0.5)
    assert await bench.run(11, least_gain=0.01) == StudyEnd.TRIALS


async def test_no_study_ends_for_little_gain_unless_it_is_asked_to(bench, foreseeing):
    foreseeing(*[0.0] * 10)
    assert await bench.run(10) == StudyEnd.TRIALS


# --- what it recommends


async def test_what_to_use_is_recorded_after_every_trial_and_when_a_study_goes_on(bench):
    asked: list[list[int]] = []

    def advise(trials):
        asked.append([trial.number for trial in trials if trial.state.is_final])
        return Recommendation(len(asked[-1]), {}, 0.96, 1.0, 0.9, 1.1, 1, "") if asked[-1] else None

    bench.advise = advise
    await bench.run(2)
    assert asked == [[], [0], [0, 1]]
    assert bench.store.recommendation("s").number == 2
    await bench.run(2)
    assert asked[3:] == [[0, 1]], "as a later version, or one that was killed before it wrote, finds it"
