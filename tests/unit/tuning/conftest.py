"""A study in which only the engine is invented: real store and search, and a pipeline that plays what a test says."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.measurement import EngineMetrics, HostUsage, LoadResult, Measurement
from optimizer.core.record import ParamValue, StudyRecord, TrialRecord
from optimizer.core.study_end import StudyEnd
from optimizer.core.trial import Stage
from optimizer.load.progress import LoadProgress
from optimizer.objectives import OBJECTIVES, parse_slo
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, SearchSpace
from optimizer.storage import StudyStore, open_store
from optimizer.tuning.attempts import TrialAttempts
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import MemoryPrescreen
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import Settings
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.strategies.tpe import Tpe
from optimizer.tuning.study_runner import Advise, Budget, StudyRunner
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob, TrialPipeline

GIB = 2**30
ARGV = ("python", "-m", "server", "--port", "1")

SPACE = SearchSpace(
    {
        "max-num-seqs": IntParameter(kind="int", low=4, high=128, log=True),
        "block-size": ChoiceParameter(kind="choice", choices=(16, 32)),
        "enable-prefix-caching": BoolParameter(kind="bool"),
        "engine-memory": FloatParameter(
            kind="float", low=1.0, high=3.0, step=0.5, unit="GiB", flag="gpu-memory-utilization"
        ),
    }
)


@dataclass
class PlainResolver:
    """Configurations without fixed flags, on a device of 8 GiB."""

    space: SearchSpace = SPACE
    baseline: Mapping[str, FlagValue] = field(default_factory=lambda: {"max-num-seqs": 16, "block-size": 16})

    def resolve(self, params: Mapping[str, ParamValue], *, device_memory_bytes: int | None) -> EngineConfig:
        return self.space.resolve(
            params, engine="vllm", model="m", fixed_flags={}, env={}, device_memory_bytes=device_memory_bytes
        )

    def baseline_config(self, *, device_memory_bytes: int | None) -> EngineConfig:
        return EngineConfig("vllm", "m", self.baseline)

    def baseline_params(self, *, device_memory_bytes: int | None) -> tuple[dict[str, ParamValue], tuple[str, ...]]:
        return self.space.params_from_flags(self.baseline, device_memory_bytes=device_memory_bytes)


def make_measurement(tokens_per_s: float = 100.0, e2e_ms: float = 500.0, n: int = 4000) -> Measurement:
    """A window of 10 s in which every request took the same time, and enough of them for the verdict on a P99."""
    scheduled_s = np.linspace(0.0, 9.0, n)
    load = LoadResult(
        window_start_s=0.0,
        window_s=10.0,
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_token_s=scheduled_s + e2e_ms / 4000.0,
        last_token_s=scheduled_s + e2e_ms / 1000.0,
        prompt_tokens=np.full(n, 32),
        output_tokens=np.full(n, 8),
        errors=(None,) * n,
        itl_s=np.full(n, 0.01),
        window_output_tokens=round(tokens_per_s * 10.0),
        window_requests=n,
    )
    return Measurement(load, EngineMetrics(preemptions=3.0, notes=("a gauge was missing",)), HostUsage())


def make_failure(
    kind: FailureKind = FailureKind.KV_CACHE_TOO_SMALL,
    blame: Blame = Blame.CONFIG,
    *,
    retryable: bool = False,
    violation: float | None = None,
    stage: Stage = Stage.LAUNCHING,
) -> Failure:
    return Failure(kind, stage, blame, f"it is {kind}", ("the last line",), 1, violation, retryable)


Answer = Callable[[TrialJob], Any]
"""What an attempt comes to: an outcome, a measurement, a failure, an exception to raise, or an awaitable of these."""


class FakePipeline(TrialPipeline):
    """Plays `answer` in place of an engine; keeps the jobs it was given and how many engines are up."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer: Answer = answer or (lambda job: make_measurement())
        self.jobs: list[TrialJob] = []
        self.engines_up = 0

    async def run(
        self,
        job: TrialJob,
        clock: StageClock,
        *,
        on_launch: Callable[[tuple[str, ...]], None],
        on_progress: Callable[[LoadProgress], None],
    ) -> AttemptOutcome:
        assert job.folder.is_dir()
        self.jobs.append(job)
        clock.enter(Stage.LAUNCHING)
        self.engines_up += 1
        try:
            on_launch(ARGV)
            clock.enter(Stage.MEASURING)
            on_progress(LoadProgress(5, 1.0, 10.0))
            answer = self.answer(job)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, BaseException):
                raise answer
        finally:
            clock.enter(Stage.STOPPING)
            self.engines_up -= 1
            clock.end()
        if isinstance(answer, Measurement):
            return AttemptOutcome(measurement=answer, argv=ARGV)
        if isinstance(answer, Failure):
            return AttemptOutcome(failure=answer, argv=ARGV)
        assert isinstance(answer, AttemptOutcome)
        return answer


class Recorder:
    """Keeps the events of a study as (name, what)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def study_opened(self, study: StudyRecord, trials: list[TrialRecord], *, total_trials: int) -> None:
        self.events.append(("opened", (len(trials), total_trials)))

    def trial_started(self, trial: TrialRecord, *, attempt: int) -> None:
        self.events.append(("started", (trial.number, attempt)))

    def stage_entered(self, number: int, stage: Stage) -> None:
        self.events.append(("stage", (number, stage.value)))

    def load_progress(self, number: int, *, done_requests: int, elapsed_s: float, window_s: float) -> None:
        self.events.append(("progress", (number, done_requests, elapsed_s, window_s)))

    def attempt_failed(self, number: int, failure: Failure, *, will_retry: bool) -> None:
        self.events.append(("failed", (number, failure.kind.value, will_retry)))

    def trial_finished(self, trial: TrialRecord) -> None:
        self.events.append(("finished", (trial.number, trial.state.value)))

    def notice(self, text: str) -> None:
        self.events.append(("notice", text))

    def named(self, *names: str) -> list[tuple[str, Any]]:
        return [event for event in self.events if event[0] in names]


class StudyBench:
    """One study on a real database. Every `run` opens the search anew, as another process would."""

    def __init__(self, store: StudyStore) -> None:
        self.store = store
        self.study = StudyRecord("s", datetime.now(UTC), {}, {}, "output_tokens_per_s", maximise=True)
        store.create_study(self.study)
        self.settings = Settings(PlainResolver(), lambda: 8 * GIB)
        self.pipeline = FakePipeline()
        self.observer = Recorder()
        self.slos: tuple[str, ...] = ()
        self.now_s: Iterator[float] | None = None
        self.start_limit_s = 60.0
        self.prescreen: MemoryPrescreen | None = None
        self.advise: Advise | None = None

    def search_sampler(self, records: Callable[[], list[TrialRecord]] | None = None) -> RuleKeepingSampler:
        space = self.settings.resolver.space
        return RuleKeepingSampler(
            space,
            self.settings.broken_rules,
            fixed=self.settings.fixed_proposals(),
            seed=0,
            strategy=Tpe(space),
            records=records or (lambda: self.trials),
        )

    def search(self) -> OptunaSearch:
        return OptunaSearch(self.store, "s", metric=self.study.objective, maximise=True, sampler=self.search_sampler())

    def attempts(self) -> TrialAttempts:
        return TrialAttempts(
            self.store,
            "s",
            seed=0,
            settings=self.settings,
            pipeline=self.pipeline,
            observer=self.observer,
            start_limit_s=self.start_limit_s,
        )

    async def run(
        self, trials: int, *, time_s: float | None = None, first_trial_s: float = 1.0, least_gain: float | None = None
    ) -> StudyEnd:
        now_s = self.now_s
        clock: dict[str, Any] = {} if now_s is None else {"now_s": lambda: next(now_s)}
        with self.search() as search:
            runner = StudyRunner(
                self.store,
                self.study,
                search=search,
                settings=self.settings,
                attempts=self.attempts(),
                objective=OBJECTIVES["throughput"],
                slos=tuple(parse_slo(slo, origin="--slo") for slo in self.slos),
                observer=self.observer,
                prescreen=self.prescreen,
                advise=self.advise,
                **clock,
            )
            return await runner.run(Budget(trials, time_s, first_trial_s, least_gain))

    @property
    def trials(self) -> list[TrialRecord]:
        return self.store.trials("s")

    @property
    def states(self) -> list[str]:
        return [trial.state.value for trial in self.trials]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with all tables and nothing in them."""
    file = tmp_path_factory.mktemp("empty") / "studies.db"
    settings = Settings(PlainResolver(), lambda: 8 * GIB)
    sampler = RuleKeepingSampler(
        SPACE, settings.broken_rules, fixed={}, seed=0, strategy=Tpe(SPACE), records=lambda: ()
    )
    with open_store(str(file)) as store, OptunaSearch(store, "other", metric="m", maximise=True, sampler=sampler):
        pass
    return file


@pytest.fixture
def store(empty_database: Path, tmp_path: Path) -> Iterator[StudyStore]:
    """An empty history in a folder of its own."""
    shutil.copyfile(empty_database, tmp_path / "studies.db")
    with open_store(str(tmp_path / "studies.db")) as opened:
        yield opened


@pytest.fixture
def bench(store: StudyStore) -> StudyBench:
    return StudyBench(store)


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """Makes what a load run yields: `measurement(tokens_per_s, e2e_ms)`."""
    return make_measurement


@pytest.fixture
def failure() -> Callable[..., Failure]:
    """Makes failures: `failure(kind, blame, retryable=...)`."""
    return make_failure


@pytest.fixture
def resolver() -> type[PlainResolver]:
    """Puts configurations together from a space and a baseline."""
    return PlainResolver
