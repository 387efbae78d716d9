"""One attempt, with an engine that is a script: whatever happens, it is stopped, and the failure is the telling one."""

from __future__ import annotations

import asyncio
import csv
import gzip
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine import launch
from optimizer.engine.launch import EngineFailed, EngineLauncher, EngineProcess
from optimizer.engine.vllm.startup_log import StartupFacts
from optimizer.host.supervisor import StopReport
from optimizer.load import LoadFailed, Workload
from optimizer.load.completion import RequestTrace
from optimizer.tuning import trial_pipeline
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob, TrialPipeline
from tests.unit.tuning.fake_process import FakeProcess

GONE = StopReport(exit_code=0, term_s=0.1, killed=(), left=())
WORKLOAD = Workload.model_validate(
    {
        "name": "test",
        "arrivals": {"kind": "closed_loop", "in_flight": 2},
        "prompt_tokens": {"kind": "fixed", "tokens": 4},
        "output_tokens": {"kind": "fixed", "tokens": 4},
        "warmup": {"requests": 2, "max_s": 1.0},
        "window": {"min_s": 0.1, "max_s": 0.2, "min_requests": 1},
    }
)


class FakeEngine(EngineProcess):
    """Plays `ready`, `stops` and `resets`, and counts how often it was stopped to the end."""

    def __init__(self, script: Script, log: Path) -> None:
        # Port 9 answers nobody: readings of /metrics fail, and become a note.
        endpoint = EngineEndpoint("http://127.0.0.1:9", "nonce")
        super().__init__(FakeProcess(), endpoint, ("python", "-m", "server"), log)
        self.script = script
        self.stopped = 0

    def ends(self, exit_code: int = 1) -> None:
        self._process.exited.set_result(exit_code)

    async def wait_ready(self, *, limit_s: float, stall_s: float = 60.0) -> StartupFacts:
        await self.script.reach("ready")
        return self.script.facts

    async def reset_prefix_cache(self) -> bool:
        return self.script.resets

    async def stop(self) -> StopReport:
        await self.script.reach("stop")
        self.stopped += 1
        return self.script.report


@dataclass
class Script:
    """What happens in an attempt. A step in `at` runs its action there; a step in `halts` never gets further."""

    measurement: Any
    facts: StartupFacts = field(default_factory=StartupFacts)
    report: StopReport = GONE
    resets: bool = True
    at: dict[str, Any] = field(default_factory=dict)
    halts: set[str] = field(default_factory=set)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)
    engines: list[FakeEngine] = field(default_factory=list)
    traces: list[RequestTrace] = field(default_factory=list)
    processes: int = 0

    async def reach(self, step: str) -> None:
        self.event(step).set()
        if step in self.halts:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if step in self.at:
            self.at[step]()

    def event(self, step: str) -> asyncio.Event:
        return self.reached.setdefault(step, asyncio.Event())

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]


class FakeLauncher(EngineLauncher):
    """Launches engines that follow the script."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def launch(self, config: EngineConfig, *, log: Path, marker: str) -> EngineProcess:
        self.script.engines.append(FakeEngine(self.script, log))
        await self.script.reach("launch")
        return self.script.engine


def raises(error: BaseException):
    def action() -> None:
        raise error

    return action


@pytest.fixture
def script(measurement, monkeypatch) -> Script:
    """A good attempt, unless a test changes it; warm-up and load are steps of it."""
    script = Script(measurement=measurement())

    async def warm_up(endpoint, workload, plan, *, traces):
        traces.extend(script.traces)
        await script.reach("warm_up")
        return 2

    async def run_load(endpoint, workload, plan, *, on_window_open, on_window_close, traces, processes, **others):
        script.processes = processes
        traces.extend(script.traces)
        on_window_open()
        await script.reach("load")
        on_window_close()
        return script.measurement.load

    monkeypatch.setattr(trial_pipeline, "warm_up", warm_up)
    monkeypatch.setattr(trial_pipeline, "run_load", run_load)
    return script


@pytest.fixture
def job(tmp_path) -> TrialJob:
    return TrialJob("s/0/1", EngineConfig("vllm", "m"), None, tmp_path, 0, 1, 60.0)


@dataclass
class Attempt:
    """Runs the attempt and keeps what was told of it."""

    script: Script
    job: TrialJob
    stages: list[str] = field(default_factory=list)
    argv: list[tuple[str, ...]] = field(default_factory=list)
    hang_s: float = 30.0
    clock: StageClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = StageClock(lambda timings: self.stages.append(timings[-1].stage.value))

    async def run(self) -> AttemptOutcome:
        pipeline = TrialPipeline(FakeLauncher(self.script), WORKLOAD, hang_s=self.hang_s)
        return await pipeline.run(self.job, self.clock, on_launch=self.argv.append, on_progress=lambda progress: None)


@pytest.fixture
def attempt(script, job) -> Attempt:
    return Attempt(script, job)


async def test_a_good_attempt_gives_its_measurement(attempt, script, job):
    outcome = await attempt.run()
    assert outcome.failure is None
    assert outcome.measurement.load is script.measurement.load
    assert (outcome.argv, outcome.stop, outcome.startup) == (script.engine.argv, GONE, script.facts)
    assert attempt.argv == [script.engine.argv]
    assert attempt.stages == ["launching", "warming_up", "measuring", "stopping", "stopping"]
    assert all(timing.duration_s is not None for timing in attempt.clock.stages)
    assert script.engine.stopped == 1
    assert (job.folder / "requests.csv.gz").exists()
    assert script.engine.log == job.folder / "engine.log"


async def test_a_prefix_cache_that_was_not_reset_is_noted(attempt, script):
    script.resets = False
    outcome = await attempt.run()
    assert any("prefix cache" in note for note in outcome.measurement.engine.notes)


# --- interruptions


@pytest.mark.parametrize("step", ["ready", "warm_up", "load"])
async def test_cancelled_in_a_stage_the_engine_is_stopped_before_the_cancellation_goes_on(attempt, script, step):
    script.halts.add(step)
    task = asyncio.create_task(attempt.run())
    await script.event(step).wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.engine.stopped == 1
    assert attempt.clock.stage is Stage.STOPPING
    assert all(timing.duration_s is not None for timing in attempt.clock.stages)


async def test_cancelled_while_it_launches_the_engine_is_awaited_and_stopped(attempt, script):
    """An engine that the guard starts after nobody waits for it would have no one to stop it."""
    script.at["launch"] = lambda: None
    task = asyncio.create_task(attempt.run())
    await script.event("launch").wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.engine.stopped == 1
    assert attempt.argv == [], "nothing further was done with it"


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelled_while_it_stops_the_stop_is_awaited(attempt, script, times):
    release = asyncio.Event()

    async def reach(step, real=script.reach):
        await real(step)
        if step == "stop":
            await release.wait()

    script.reach = reach
    task = asyncio.create_task(attempt.run())
    await script.event("stop").wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.engine.stopped == 1
    assert all(timing.duration_s is not None for timing in attempt.clock.stages)


async def test_cancelled_in_a_stage_and_again_while_it_stops(attempt, script):
    script.halts.add("load")
    task = asyncio.create_task(attempt.run())
    await script.event("load").wait()
    task.cancel()
    await script.event("stop").wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.engine.stopped == 1


# --- failures


def failed(kind: FailureKind = FailureKind.OUT_OF_MEMORY, blame: Blame = Blame.CONFIG) -> EngineFailed:
    return EngineFailed(Failure(kind, Stage.LAUNCHING, blame, "it ended"))


async def test_an_engine_that_does_not_start_is_a_failure_of_the_launch(attempt, script):
    script.at["ready"] = raises(failed())
    outcome = await attempt.run()
    assert (outcome.failure, outcome.measurement, outcome.startup) == (failed().failure, None, None)
    assert script.engine.stopped == 1
    assert attempt.stages == ["launching", "stopping", "stopping"]


@pytest.mark.parametrize(("step", "stage"), [("warm_up", Stage.WARMING_UP), ("load", Stage.MEASURING)])
async def test_an_engine_that_ends_under_load_is_the_failure(attempt, script, step, stage):
    script.halts.add(step)
    task = asyncio.create_task(attempt.run())
    await script.event(step).wait()
    script.engine.ends(-9)
    outcome = await task
    assert outcome.failure.stage is stage
    assert outcome.failure.exit_code == -9
    assert outcome.measurement is None
    assert script.engine.stopped == 1


@pytest.mark.parametrize(("step", "stage"), [("warm_up", Stage.WARMING_UP), ("load", Stage.MEASURING)])
async def test_a_load_that_breaks_off_is_explained_by_the_end_of_the_engine(attempt, script, step, stage):
    """Clients see a dead engine as broken connections, and may see it first."""

    def breaks_off() -> None:
        asyncio.get_running_loop().call_soon(script.engine.ends, 7)
        raise LoadFailed("20 requests failed", ("20 x connection reset",))

    script.at[step] = breaks_off
    outcome = await attempt.run()
    assert (outcome.failure.exit_code, outcome.failure.stage) == (7, stage)
    assert outcome.failure.kind is not FailureKind.ERROR_RATE


async def test_a_load_that_breaks_off_on_a_living_engine_is_an_error_rate(attempt, script, monkeypatch):
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    script.at["load"] = raises(LoadFailed("20 requests failed", ("20 x HTTP 500",)))
    outcome = await attempt.run()
    assert outcome.failure == Failure(
        FailureKind.ERROR_RATE, Stage.MEASURING, Blame.CONFIG, "20 requests failed", ("20 x HTTP 500",), retryable=True
    )


async def test_a_window_without_a_success_is_an_error_rate_and_its_samples_are_kept(attempt, script, job, monkeypatch):
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    load = script.measurement.load
    script.measurement = replace(script.measurement, load=replace(load, errors=("HTTP 500",) * len(load.errors)))
    outcome = await attempt.run()
    assert (outcome.failure.kind, outcome.failure.evidence) == (FailureKind.ERROR_RATE, ("HTTP 500",))
    assert outcome.measurement is None
    assert (job.folder / "requests.csv.gz").exists()


def running(tokens: int) -> RequestTrace:
    """A request that got some tokens and waits for more."""
    now_s = time.monotonic()
    trace = RequestTrace(now_s, 4, 100, sent_s=now_s)
    for _ in range(tokens):
        trace.arrivals.append((now_s, 1))
    return trace


@pytest.mark.parametrize(("step", "stage"), [("warm_up", Stage.WARMING_UP), ("load", Stage.MEASURING)])
async def test_a_load_without_progress_is_a_hang(attempt, script, monkeypatch, step, stage):
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    attempt.hang_s = 0.1
    script.halts.add(step)
    script.traces = [running(0)]
    outcome = await attempt.run()
    assert (outcome.failure.kind, outcome.failure.stage) == (FailureKind.ENGINE_HANG, stage)
    assert (outcome.failure.blame, outcome.failure.retryable) == (Blame.CONFIG, True)
    assert outcome.measurement is None
    assert script.engine.stopped == 1


async def test_what_a_hung_engine_had_answered_is_kept_as_evidence_and_is_no_measurement(
    attempt, script, job, monkeypatch
):
    monkeypatch.setattr(launch, "_END_SEEN_S", 0.01)
    attempt.hang_s = 0.1
    script.halts.add("load")
    script.traces = [running(3), running(0)]
    outcome = await attempt.run()
    assert outcome.failure.kind is FailureKind.ENGINE_HANG
    assert outcome.measurement is None
    rows = list(csv.DictReader(gzip.decompress((job.folder / "requests.csv.gz").read_bytes()).decode().splitlines()))
    assert [(row["output_tokens"], row["error"]) for row in rows] == [("3", "unfinished"), ("0", "unfinished")]


async def test_a_load_that_gave_up_on_an_engine_that_answers_nothing_more_is_a_hang(attempt, script):
    """A window shorter than the standstill that is a hang ends first, with nothing but unfinished requests."""

    async def silent(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/health", health), web.post("/v1/completions", silent)])
    async with TestServer(app, handler_cancellation=True) as server:

        def gives_up() -> None:
            script.engine.endpoint = EngineEndpoint(str(server.make_url("")).rstrip("/"), "nonce")
            raise LoadFailed("none of 4 warm-up requests succeeded", ("4 x unfinished",))

        attempt.hang_s = 0.2
        script.at["warm_up"] = gives_up
        outcome = await attempt.run()
    assert (outcome.failure.kind, outcome.failure.stage) == (FailureKind.ENGINE_HANG, Stage.WARMING_UP)
    assert "one completion of two tokens was not answered" in outcome.failure.detail


@pytest.mark.parametrize("broken", [False, True])
async def test_survivors_are_the_hosts_fault_whatever_else_happened(attempt, script, broken):
    script.report = replace(GONE, left=(17, 18))
    if broken:
        script.at["ready"] = raises(failed())
    outcome = await attempt.run()
    assert outcome.measurement is None
    assert (outcome.failure.kind, outcome.failure.blame) == (FailureKind.HOST_FAULT, Blame.HOST)
    assert outcome.failure.retryable
    assert "17, 18" in outcome.failure.detail


@pytest.mark.parametrize("fail_once", [True, False])
async def test_where_their_card_is_used_no_more_survivors_fail_only_the_attempt_that_left_them(script, job, fail_once):
    pipeline = TrialPipeline(FakeLauncher(script), WORKLOAD, survivors_fail_once=fail_once)

    async def left_by_attempt(*pids: int) -> tuple[int, ...]:
        script.report = replace(GONE, left=pids)
        clock = StageClock(lambda timings: None)
        outcome = await pipeline.run(job, clock, on_launch=lambda argv: None, on_progress=lambda progress: None)
        assert (outcome.measurement is None) is bool(outcome.stop.left)
        return outcome.stop.left

    assert await left_by_attempt(17) == (17,)
    assert await left_by_attempt(17) == (() if fail_once else (17,))
    assert await left_by_attempt(17, 18) == ((18,) if fail_once else (17, 18))
    assert await left_by_attempt() == ()


@pytest.mark.parametrize(
    ("declared_gib", "taken_gib", "accepted"),
    [(1.7, 1.7, True), (1.7, 1.74, True), (1.7, 2.0, False), (1.7, 1.5, False), (None, 9.0, True), (1.7, None, True)],
)
async def test_an_engine_with_another_share_of_memory_is_the_hosts_fault(
    script, job, declared_gib, taken_gib, accepted
):
    script.facts = StartupFacts(requested_memory_gib=taken_gib)
    outcome = await Attempt(script, replace(job, expected_memory_gib=declared_gib)).run()
    if accepted:
        assert outcome.failure is None
        return
    assert (outcome.failure.kind, outcome.failure.blame) == (FailureKind.HOST_FAULT, Blame.HOST)
    assert outcome.failure.retryable
    assert f"{taken_gib:.2f} GiB" in outcome.failure.detail
    assert script.engine.stopped == 1


# --- trouble that ends the study


async def test_a_host_that_cannot_launch_ends_the_study(attempt, script):
    script.at["launch"] = raises(HostError("no free port"))
    with pytest.raises(HostError, match="no free port"):
        await attempt.run()


async def test_samples_that_cannot_be_written_are_the_hosts_fault(script, job):
    (job.folder / "requests.csv.gz.tmp").mkdir()
    with pytest.raises(HostError, match=r"cannot write .*requests\.csv\.gz") as caught:
        await Attempt(script, job).run()
    assert "same command" in caught.value.hint
    assert script.engine.stopped == 1


async def test_a_stage_that_cannot_be_recorded_does_not_keep_the_engine_alive(script, job):
    def record(timings):
        if timings[-1].stage is Stage.STOPPING:
            raise HostError("the disk is full")

    attempt = Attempt(script, job)
    attempt.clock = StageClock(record)
    with pytest.raises(HostError, match="disk is full"):
        await attempt.run()
    assert script.engine.stopped == 1


async def test_a_guard_that_is_gone_is_told(attempt, script):
    script.at["stop"] = raises(HostError("the guard is gone"))
    with pytest.raises(HostError, match="guard is gone"):
        await attempt.run()
