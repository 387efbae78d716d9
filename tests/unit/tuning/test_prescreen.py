"""What cannot start for want of memory: found out from the account, corrected by the record, visible in notes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import Any

import pytest

from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import InputError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Score, Verdict
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.engine.memory import MemoryAccount
from optimizer.engine.vllm.startup_log import StartupFacts
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Rule, SearchSpace
from optimizer.storage import open_store
from optimizer.tuning.course import MAX_REJECTS
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import MemoryPrescreen, Misfit, observations, with_memory_facts
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import Settings
from optimizer.tuning.strategies.draw import STARTUP_TRIALS
from optimizer.tuning.strategies.tpe import Tpe

GIB = 2**30
TOTAL = 24 * GIB


def space(*, low=0.9, high=2.1, lengths=(1024, 16384), rules=()):
    return SearchSpace(
        {
            "engine-memory": FloatParameter(
                kind="float", low=low, high=high, step=0.4, unit="GiB", flag="gpu-memory-utilization"
            ),
            "max-num-seqs": IntParameter(kind="int", low=4, high=128, log=True),
            "max-model-len": ChoiceParameter(kind="choice", choices=lengths),
            "enable-prefix-caching": BoolParameter(kind="bool"),
            "block-size": ChoiceParameter(kind="choice", choices=(32, 64, 128)),
        },
        tuple(map(Rule.parse, rules)),
    )


@pytest.fixture(scope="module")
def account(project_root):
    """The bundled model: 32 KiB of KV a token, so that 16384 tokens take half a GiB."""
    return MemoryAccount.of_folder(project_root / "search_spaces/models/tiny-kv", "cpu")


def eager(config):
    return replace(config, flags={"enforce-eager": True, "dtype": "float32", **config.flags})


@dataclass
class Eager:
    """Another resolver, with every engine run eagerly in 32 bits."""

    inner: Any

    @property
    def space(self):
        return self.inner.space

    def resolve(self, params, *, device_memory_bytes):
        return eager(self.inner.resolve(params, device_memory_bytes=device_memory_bytes))

    def baseline_config(self, *, device_memory_bytes):
        return eager(self.inner.baseline_config(device_memory_bytes=device_memory_bytes))

    def baseline_params(self, *, device_memory_bytes):
        return self.inner.baseline_params(device_memory_bytes=device_memory_bytes)


@pytest.fixture
def settings_of(resolver):
    """A space's settings on a host of 24 GiB."""
    return lambda searched: Settings(Eager(resolver(searched, {})), lambda: TOTAL)


@pytest.fixture
def prescreen(account, settings_of):
    def make(searched, records=()):
        settings = settings_of(searched)
        return MemoryPrescreen(account, settings, device_bytes=lambda: TOTAL, records=lambda: records)

    return make


def flags(gib=1.7, **more):
    common = {"enforce-eager": True, "dtype": "float32", "max-model-len": 1024, "block-size": 32}
    return {**common, "gpu-memory-utilization": round(gib * GIB / TOTAL, 4), **more}


def trial(number=2, tokens=38_000.0, *, state=TrialState.FEASIBLE, failure=None, requested=1.7 * GIB, **more):
    metrics = {} if tokens is None else {"kv_cache_tokens": tokens, "requested_memory_bytes": requested}
    config = EngineConfig("vllm", "m", flags(**more))
    return TrialRecord("s", number, TrialRole.SEARCH, state, config=config, metrics=metrics, failure=failure)


@pytest.fixture
def some_misfit():
    """An invented one."""
    return Misfit("a KV pool of at most 0.10 GiB is smaller than one request of 65536 tokens (2.00 GiB)", 1.2)


# --- one proposal


def test_a_proposal_that_cannot_start_is_told_with_numbers_and_a_grade(prescreen):
    searched = space(low=0.5, high=0.9, lengths=(1024, 32768))
    misfit = prescreen(searched).opened()({"engine-memory": 0.5, "max-model-len": 32768, "block-size": 32})
    assert misfit is not None
    assert "one request of 32768 tokens (1.00 GiB)" in misfit.reason
    assert misfit.violation > 0
    assert prescreen(searched).opened()({"engine-memory": 0.9, "max-model-len": 1024, "block-size": 32}) is None


def test_what_might_start_is_launched(prescreen):
    """The interval before any start is wide: 0.9 GiB may hold a request of half a GiB, or not."""
    assert prescreen(space()).opened()({"engine-memory": 0.9, "max-model-len": 16384, "block-size": 32}) is None


def test_starts_narrow_the_interval(prescreen):
    doubtful = {"engine-memory": 0.9, "max-model-len": 16384, "block-size": 32}
    starts = [trial(number, tokens) for number, tokens in enumerate([38_208.0, 38_240.0, 38_144.0])]
    assert prescreen(space(), starts).opened()(doubtful) is not None


def test_trials_that_still_run_teach_nothing(prescreen):
    doubtful = {"engine-memory": 0.9, "max-model-len": 16384, "block-size": 32}
    running = [trial(number, state=TrialState.RUNNING) for number in range(3)]
    assert prescreen(space(), running).opened()(doubtful) is None


def test_flags_that_cannot_be_counted_with_are_launched(prescreen):
    config = EngineConfig("vllm", "m", {**flags(), "hf-overrides": {"num_hidden_layers": 3}})
    assert prescreen(space()).predict(config) is None


def test_the_shells_pool_size_counts_unless_the_space_sets_its_own(account, settings_of):
    settings = settings_of(space())
    inherited = {"VLLM_CPU_KVCACHE_SPACE": "2"}
    screen = MemoryPrescreen(account, settings, device_bytes=lambda: TOTAL, records=lambda: (), inherited=inherited)
    assert screen.predict(EngineConfig("vllm", "m", flags())).pool_bytes.mid == 2 * GIB
    own = EngineConfig("vllm", "m", flags(), {"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert screen.predict(own).pool_bytes.mid == GIB


# --- the record


def test_measured_and_failed_trials_are_observations():
    facts = {"max_model_len": 16384.0, "needed_gib": 0.5, "available_gib": 0.36, "short_gib": 0.14}
    too_small = Failure(FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, Blame.CONFIG, "no", facts=facts)
    nothing_left = replace(too_small, facts={"left_for_kv_gib": -0.2, "engine_memory_gib": 0.5})
    host_short = replace(too_small, facts={"available_gib": 3.0, "needed_gib": 4.0})
    crash = replace(too_small, kind=FailureKind.ENGINE_CRASH)
    failures = (too_small, nothing_left, host_short, crash)
    trials = [
        trial(0),
        *[trial(n, None, state=TrialState.FAILED, failure=f) for n, f in enumerate(failures, 1)],
        replace(trial(9), config=None),
    ]
    seen = observations(trials)
    assert [(o.pool_tokens, o.pool_bytes, o.requested_bytes) for o in seen] == [
        (38_000.0, None, 1.7 * GIB),
        (None, 0.36 * GIB, None),
        (None, -0.2 * GIB, 0.5 * GIB),
    ]


def test_a_measurement_tells_what_was_predicted_beside_what_was_reported(prescreen, measurement):
    prediction = prescreen(space()).predict(EngineConfig("vllm", "m", flags()))
    facts = StartupFacts(kv_cache_tokens=38_208, requested_memory_gib=1.7, model_loading_gib=0.01)
    engine = with_memory_facts(measurement(), facts, prediction).engine
    assert engine.kv_cache_tokens == 38_208.0
    assert engine.kv_cache_tokens_predicted == pytest.approx(38_208, rel=0.15)
    assert (engine.requested_memory_bytes, engine.model_weights_bytes) == (1.7 * GIB, 0.01 * GIB)
    reported = replace(measurement(), engine=replace(measurement().engine, kv_cache_tokens=38_144.0))
    assert with_memory_facts(reported, facts, None).engine.kv_cache_tokens == 38_144.0, "/metrics says it better"
    assert with_memory_facts(measurement(), None, None).engine.kv_cache_tokens is None


# --- a whole space


def test_a_space_of_which_nothing_can_start_is_refused_with_numbers(prescreen):
    hopeless = space(low=0.5, high=0.9, lengths=(65536, 131072))
    with pytest.raises(InputError) as caught:
        prescreen(hopeless).require_any_fit(hopeless)
    assert "nothing in the space can start" in caught.value.message
    assert "engine-memory=0.9" in caught.value.message
    assert "max-model-len=65536" in caught.value.message
    assert "2.00 GiB" in caught.value.message


def test_a_space_of_which_something_may_start_is_not(prescreen):
    searched = space(low=0.5, high=0.9, lengths=(1024, 131072))
    prescreen(searched).require_any_fit(searched)


# --- asking


@pytest.fixture
def asking(prescreen, settings_of):
    """A search over a space, with the account's misfits or invented ones."""

    def make(searched, misfit=None, *, seed=0, screened=True):
        settings = settings_of(searched)
        check = (misfit or prescreen(searched).opened()) if screened else None
        sampler = RuleKeepingSampler(
            searched,
            settings.broken_rules,
            fixed=settings.fixed_proposals(),
            seed=seed,
            prescreen=None if check is None else lambda: check,
            strategy=Tpe(searched),
            records=lambda: (),
        )
        return OptunaSearch(None, "s", metric="m", maximise=True, sampler=sampler)

    return make


def ask_and_tell(search, count):
    """Asks that many, all measured and feasible. Proposals and their notes."""
    asked = []
    for _ in range(count):
        number, params = search.ask()
        asked.append((params, search.notes(number)))
        value = 100.0 + params.get("max-num-seqs", 0)
        score = Score("m", value, True, Verdict.FEASIBLE)
        search.tell(TrialRecord("s", number, TrialRole.SEARCH, TrialState.FEASIBLE, score=score))
    return asked


TIGHT = space(low=0.5, high=0.9, lengths=(1024, 65536))


def test_no_proposal_that_cannot_start_is_ever_made(asking, prescreen):
    screen = prescreen(TIGHT).opened()
    asked = ask_and_tell(asking(TIGHT), STARTUP_TRIALS + 6)
    assert all(screen(params) is None for params, _ in asked[2:])
    unscreened = ask_and_tell(asking(TIGHT, screened=False), STARTUP_TRIALS + 6)
    assert any(screen(params) is not None for params, _ in unscreened[2:])


def test_how_many_were_rejected_and_why_is_told_of_the_trial(asking):
    notes = [note for _, (_, *told) in ask_and_tell(asking(TIGHT), 12)[2:] for note in told]
    assert notes
    for note in notes:
        assert note.partition(" ")[0].isdigit()
        assert "rejected unlaunched: " in note
        assert "one request of 65536 tokens (2.00 GiB)" in note


def test_a_screen_that_lets_everything_pass_changes_no_proposal(asking):
    assert ask_and_tell(asking(TIGHT, lambda params: None), 12) == ask_and_tell(asking(TIGHT, screened=False), 12)


def test_the_same_history_gives_the_same_proposals(asking):
    assert ask_and_tell(asking(TIGHT), 12) == ask_and_tell(asking(TIGHT), 12)


WIDE = SearchSpace({**TIGHT.parameters, "max-num-seqs": IntParameter(kind="int", low=1, high=4096)})


def test_after_64_rejects_the_nearest_that_fits_is_proposed(asking, some_misfit):
    """One value in 4096 fits: random draws would miss it for long."""
    rejected = []

    def only_one(params):
        if params["max-num-seqs"] == 4096 and params["block-size"] == 64:
            return None
        rejected.append(params)
        return some_misfit

    params, (why, note) = ask_and_tell(asking(WIDE, only_one), 3)[2]
    assert (params["max-num-seqs"], params["block-size"]) == (4096, 64)
    last = rejected[MAX_REJECTS - 1]
    others = ("engine-memory", "max-model-len", "enable-prefix-caching")
    assert {name: params[name] for name in others} == {name: last[name] for name in others}
    assert why == "proposed by tpe"
    assert note.startswith(f"{MAX_REJECTS} proposals before this one were rejected unlaunched: ")
    assert note.endswith("this is the nearest setting that fits")


def test_the_nearest_keeps_the_rules(asking, some_misfit):
    ruled = SearchSpace(WIDE.parameters, (Rule.parse("max-num-seqs != 4096"),))
    search = asking(ruled, lambda params: None if params["max-num-seqs"] in (1, 4096) else some_misfit)
    params, _ = ask_and_tell(search, 3)[2]
    assert params["max-num-seqs"] == 1


def test_where_nothing_is_found_that_fits_the_ask_says_so(asking, some_misfit):
    search = asking(TIGHT, lambda params: some_misfit)
    for number in (0, 1):
        assert search.ask()[0] == number, "baseline and defaults are launched whatever the account says"
    with pytest.raises(InputError, match="no setting of the space that keeps its rules was found to start"):
        search.ask()


def test_rejects_teach_the_model_within_the_ask_and_leave_no_trial_behind(asking, some_misfit):
    """A model that learnt nothing would ask for what it lacks 78 times on average; no reject becomes a trial."""
    draws: list[int] = []

    def rarely(params):
        draws[-1] += 1
        return None if params["max-model-len"] == 1024 and params["block-size"] == 32 else some_misfit

    search = asking(TIGHT, rarely)
    for number in range(STARTUP_TRIALS + 8):
        draws.append(0)
        ask_and_tell(search, 1)
        assert len(search) == number + 1
    modelled = draws[STARTUP_TRIALS:]
    assert sum(modelled) / len(modelled) < 12


def test_what_is_learnt_within_an_ask_moves_the_model_away_from_it(asking, some_misfit):
    """Right after random trials, all of them of one choice, that choice turns out to fit no more."""
    seen = []

    def turned(params):
        seen.append(params["block-size"])
        fits = (32,) if len(seen) <= STARTUP_TRIALS - 2 or not started else (64, 128)
        return None if params["block-size"] in fits else some_misfit

    started = False
    search = asking(TIGHT, turned)
    ask_and_tell(search, STARTUP_TRIALS)
    started, before = True, len(seen)
    params, _ = ask_and_tell(search, 1)[0]
    assert params["block-size"] in (64, 128)
    assert len(seen) - before < MAX_REJECTS


# --- the study


async def test_a_baseline_that_cannot_start_is_launched_all_the_same_with_a_note(bench, account):
    bench.settings.resolver.baseline = {"max-num-seqs": 16, "gpu-memory-utilization": 0.01}
    bench.prescreen = MemoryPrescreen(
        account, bench.settings, device_bytes=lambda: 8 * GIB, records=lambda: bench.trials
    )
    await bench.run(3)
    baseline, default, found = bench.trials
    assert baseline.state is TrialState.FEASIBLE
    assert baseline.notes[0].startswith("launched although it is not expected to start: of 0.08 GiB at least ")
    assert baseline.metrics["kv_cache_tokens_predicted"] == 0.0
    assert default.notes == ("a gauge was missing",)
    assert default.metrics["kv_cache_tokens_predicted"] > 0
    assert found.metrics["kv_cache_tokens_predicted"] > 0


async def test_an_interrupted_trial_keeps_its_note(bench, some_misfit):
    """The note lies with the proposal, whose number a later run adopts."""
    asked = []

    def first_alone(params):
        asked.append(params)
        return some_misfit if len(asked) == 1 else None

    sampler = RuleKeepingSampler(
        bench.settings.resolver.space,
        bench.settings.broken_rules,
        fixed=bench.settings.fixed_proposals(),
        seed=0,
        prescreen=lambda: first_alone,
        strategy=Tpe(bench.settings.resolver.space),
        records=lambda: (),
    )
    with OptunaSearch(bench.store, "s", metric="output_tokens_per_s", maximise=True, sampler=sampler) as search:
        assert [search.ask()[0] for _ in range(3)] == [0, 1, 2]
    with bench.search() as search:
        assert search.open_numbers() == [0, 1, 2]
        assert search.notes(2)[1].startswith("1 proposal before this one was rejected unlaunched: ")
    await bench.run(3)
    assert bench.trials[2].notes[0] == "proposed by tpe"
    assert bench.trials[2].notes[1].startswith("1 proposal before this one was rejected unlaunched: ")


@pytest.fixture
def screened_bench(bench, account, settings_of, measurement, monkeypatch):
    """A study of the tight space whose engines report the pool that a worker of 0.42 GiB leaves."""
    bench.settings = settings_of(TIGHT)
    screen = MemoryPrescreen(account, bench.settings, device_bytes=lambda: TOTAL, records=lambda: bench.trials)
    bench.prescreen = screen

    def answer(job):
        told = measurement(tokens_per_s=100.0 + float(job.config.flags.get("max-num-seqs", 0)))
        share = float(job.config.flags.get("gpu-memory-utilization", 0.92))
        tokens = float(max(0, int(share * TOTAL - 0.42 * GIB)) // 32768)
        return replace(told, engine=replace(told.engine, kv_cache_tokens=tokens))

    bench.pipeline.answer = answer
    monkeypatch.setattr(
        bench,
        "search_sampler",
        lambda: RuleKeepingSampler(
            TIGHT,
            bench.settings.broken_rules,
            fixed=bench.settings.fixed_proposals(),
            seed=5,
            prescreen=screen.opened,
            strategy=Tpe(TIGHT),
            records=lambda: bench.trials,
        ),
    )
    return bench


async def test_a_study_broken_off_learns_the_same_as_an_unbroken_one(screened_bench, empty_database, tmp_path):
    """Account and proposals follow from the record: another process comes to the same ones."""
    await screened_bench.run(5)
    await screened_bench.run(9)
    resumed = [(trial.params, trial.notes, trial.metrics) for trial in screened_bench.trials]
    shutil.copyfile(empty_database, tmp_path / "another.db")
    with open_store(str(tmp_path / "another.db")) as store:
        store.create_study(screened_bench.study)
        screened_bench.store = store
        await screened_bench.run(9)
        assert [(trial.params, trial.notes, trial.metrics) for trial in screened_bench.trials] == resumed
    assert any("rejected unlaunched" in note for _, notes, _ in resumed for note in notes)


async def test_predictions_come_nearer_with_every_start(screened_bench):
    await screened_bench.run(8)
    off = [
        abs(trial.metrics["kv_cache_tokens_predicted"] - trial.metrics["kv_cache_tokens"])
        for trial in screened_bench.trials
    ]
    assert max(off[1:]) * 32768 < 0.05 * GIB
