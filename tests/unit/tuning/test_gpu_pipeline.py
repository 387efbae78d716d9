"""An attempt on leased cards: what it launches on, what is kept of it, and what the cards make of its outcome."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.vllm.failures import classify
from optimizer.host.leases import lease_gpus
from optimizer.host.supervisor import StopReport
from optimizer.tuning.gpu_hold import GpuHold
from optimizer.tuning.gpu_pipeline import GPU_MEMORY, GpuPipeline
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import AttemptOutcome, TrialJob
from tests.gpu.fake_nvml import GIB, FakeClock, FakeNvml, card, tells

ENGINE, STRANGER = 40, 7000
FIRST, SECOND = card(0), card(1)
WATCH_EVERY_S = 0.002


@dataclass
class Scripted:
    """An attempt whose engine takes 120 GiB; `meanwhile` happens; it gives all back unless it `stays`."""

    nvml: FakeNvml
    outcome: AttemptOutcome
    meanwhile: Callable[[], None] = lambda: None
    stays: bool = False
    trouble: BaseException | None = None
    jobs: list[TrialJob] = field(default_factory=list)

    async def run(self, job, clock, *, on_launch, on_progress) -> AttemptOutcome:
        self.jobs.append(job)
        gpu = self.nvml.find(job.config.env["CUDA_VISIBLE_DEVICES"].split(",")[0])
        clock.enter(Stage.LAUNCHING)
        on_launch(("python",))
        self.nvml.enters(ENGINE, 120 * GIB, gpu)
        await self.looked_at()
        clock.enter(Stage.MEASURING)
        self.meanwhile()
        await self.looked_at()
        clock.enter(Stage.STOPPING)
        if not self.stays:
            self.nvml.leaves(ENGINE, gpu)
        await self.looked_at()
        clock.end()
        if self.trouble is not None:
            raise self.trouble
        return self.outcome

    async def looked_at(self) -> None:
        """Until the watch has looked often enough to have seen every card of the attempt, twice."""
        await asyncio.to_thread(self.nvml.wait_for_reads, self.nvml.reads + 4)


@dataclass
class Attempt:
    nvml: FakeNvml
    inner: Scripted
    hold: GpuHold
    job: TrialJob
    stages: list[Stage] = field(default_factory=list)

    async def run(self) -> AttemptOutcome:
        clock = StageClock(lambda timings: self.stages.append(timings[-1].stage))
        pipeline = GpuPipeline(self.inner, self.hold, watch_every_s=WATCH_EVERY_S)
        return await pipeline.run(self.job, clock, on_launch=lambda argv: None, on_progress=lambda progress: None)

    @property
    def kept(self) -> dict:
        return json.loads((self.job.folder / GPU_MEMORY).read_text())


@pytest.fixture
def measured(measurement) -> AttemptOutcome:
    return AttemptOutcome(measurement(), notes=("a note of the engine",))


@pytest.fixture
def attempt(measured, tmp_path: Path):
    """Two cards of a real desk, both needed unless the flags say otherwise."""
    nvml = FakeNvml((FIRST, SECOND))
    clock = FakeClock()
    hold = GpuHold(
        nvml,
        nvml.cards,
        1,
        take=lambda gpus, count: lease_gpus(gpus, count, study="s", folder=tmp_path / "leases"),
        tell_ours=tells(ENGINE),
        now_s=clock.now_s,
        sleep=clock.sleep,
    )
    config = EngineConfig("vllm", "m", env={"CUDA_VISIBLE_DEVICES": "0,1,2", "KEPT": "1"})
    job = TrialJob("s/0/1", config, None, tmp_path, 0, 1, 60.0)
    yield Attempt(nvml, Scripted(nvml, measured), hold, job)
    hold.close()


async def test_the_engine_sees_the_cards_of_the_study_and_no_other(attempt, measured):
    outcome = await attempt.run()
    assert attempt.inner.jobs[0].config.env == {"CUDA_VISIBLE_DEVICES": FIRST.uuid, "KEPT": "1"}
    assert attempt.inner.jobs[0].folder == attempt.job.folder
    assert outcome.measurement is measured.measurement
    assert attempt.stages == [Stage.LAUNCHING, Stage.MEASURING, Stage.STOPPING, Stage.STOPPING]


async def test_an_engine_on_two_cards_gets_two(attempt):
    attempt.job = replace(attempt.job, config=EngineConfig("vllm", "m", {"tensor-parallel-size": 2}))
    await attempt.run()
    assert attempt.inner.jobs[0].config.env == {"CUDA_VISIBLE_DEVICES": f"{FIRST.uuid},{SECOND.uuid}"}
    assert [gpu["index"] for gpu in attempt.kept["gpus"]] == [0, 1]


async def test_the_memory_of_the_card_is_kept_and_told(attempt):
    attempt.nvml.used[FIRST.uuid] = GIB // 8
    outcome = await attempt.run()
    assert attempt.kept == {
        "clean_after_s": 0.0,
        "gpus": [
            {
                "uuid": FIRST.uuid,
                "index": 0,
                "name": "NVIDIA H200",
                "total_bytes": 140 * GIB,
                "before_launch_bytes": GIB // 8,
                "before_stop_bytes": 120 * GIB + GIB // 8,
                "most_bytes": 120 * GIB + GIB // 8,
                "after_stop_bytes": GIB // 8,
            }
        ],
    }
    assert outcome.notes == (
        "a note of the engine",
        "GPU 0 (NVIDIA H200): 0.1 GiB in use before the launch, 120.1 GiB before the stop, 0.1 GiB 0.0 s after it",
    )


# --- co-tenants


async def test_a_busy_card_is_not_launched_on(attempt):
    attempt.nvml.enters(STRANGER, 40 * GIB)
    outcome = await attempt.run()
    assert outcome.failure.kind is FailureKind.GPU_BUSY
    assert attempt.inner.jobs == []
    assert attempt.stages == [Stage.LAUNCHING, Stage.LAUNCHING]


async def test_a_co_tenant_that_stays_spoils_the_measurement(attempt):
    attempt.inner.meanwhile = lambda: attempt.nvml.enters(STRANGER, 10 * GIB)
    outcome = await attempt.run()
    assert outcome.measurement is None
    assert (outcome.failure.kind, outcome.failure.stage) == (FailureKind.GPU_BUSY, Stage.STOPPING)
    assert f"pid {STRANGER}" in outcome.failure.evidence[0]


async def test_a_co_tenant_that_came_and_went_spoils_it_too(attempt):
    inner = attempt.inner
    inner.meanwhile = lambda: attempt.nvml.enters(STRANGER, 10 * GIB)
    real = inner.looked_at

    async def looked_at_then_gone() -> None:
        await real()
        if STRANGER in attempt.nvml.tenants[FIRST.uuid]:
            attempt.nvml.leaves(STRANGER)

    inner.looked_at = looked_at_then_gone
    outcome = await attempt.run()
    assert outcome.measurement is None
    assert (outcome.failure.kind, outcome.failure.stage) == (FailureKind.GPU_BUSY, Stage.MEASURING)
    assert outcome.failure.retryable
    assert "10.0 GiB of GPU 0" in outcome.failure.detail
    assert f"pid {STRANGER}" in outcome.failure.evidence[0]


async def test_a_tenant_from_before_that_takes_no_more_spoils_nothing(attempt, tmp_path):
    attempt.nvml.enters(STRANGER, 10 * GIB)
    attempt.hold.close()
    attempt.hold = GpuHold(
        attempt.nvml,
        (FIRST,),
        1,
        take=lambda gpus, count: lease_gpus(gpus, count, study="s", folder=tmp_path / "leases"),
        tell_ours=tells(ENGINE),
    )
    assert (await attempt.run()).failure is None


SHORT_CARD = (
    "ValueError: Free memory on device cuda:0 (99.2/140.0 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 128.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


async def test_a_setting_that_asks_for_what_a_tenant_from_before_holds_is_at_fault_itself(attempt):
    """As the host's fault it would be tried three times and end the study, and each run of it after that."""
    attempt.inner.outcome = AttemptOutcome(failure=classify(SHORT_CARD, stage=Stage.LAUNCHING, exit_code=1))
    failure = (await attempt.run()).failure
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.OUT_OF_MEMORY, Blame.CONFIG, True)
    assert failure.violation == pytest.approx(math.log(128.8 / 99.2))
    assert "128.8 GiB" in failure.detail


async def test_a_setting_that_finds_a_tenant_of_now_is_not(attempt):
    attempt.inner.outcome = AttemptOutcome(failure=classify(SHORT_CARD, stage=Stage.LAUNCHING, exit_code=1))
    attempt.inner.meanwhile = lambda: attempt.nvml.enters(STRANGER, 40 * GIB)
    failure = (await attempt.run()).failure
    assert (failure.kind, failure.blame) == (FailureKind.GPU_BUSY, Blame.HOST)


async def test_hidden_pids_never_make_our_own_engine_a_stranger(attempt):
    """In a container the list may be empty, or hold numbers of another namespace."""
    attempt.nvml.lists_pids = False
    assert (await attempt.run()).failure is None
    attempt.nvml.lists_pids = True
    attempt.hold._tell_ours = tells()  # the engine's number there is not its number here
    outcome = await attempt.run()
    assert outcome.failure is None
    assert "120.0 GiB before the stop" in outcome.notes[-1]


def crash(kind: FailureKind, blame: Blame = Blame.CONFIG) -> Failure:
    return Failure(kind, Stage.MEASURING, blame, "it went wrong", ("a line",), exit_code=3)


@pytest.mark.parametrize(
    ("kind", "blamed_on_the_tenant"),
    [
        (FailureKind.OUT_OF_MEMORY, True),
        (FailureKind.KV_CACHE_TOO_SMALL, True),
        (FailureKind.ENGINE_CRASH, True),
        (FailureKind.UNKNOWN, True),
        (FailureKind.REJECTED_FLAG, False),
        (FailureKind.INVALID_COMBINATION, False),
        (FailureKind.PORT_TAKEN, False),
    ],
)
async def test_a_crash_beside_a_co_tenant_is_not_the_settings_fault(attempt, kind, blamed_on_the_tenant):
    attempt.inner.outcome = AttemptOutcome(failure=crash(kind))
    attempt.inner.meanwhile = lambda: attempt.nvml.enters(STRANGER, 60 * GIB)
    failure = (await attempt.run()).failure
    if not blamed_on_the_tenant:
        assert failure == crash(kind)
        return
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.GPU_BUSY, Blame.HOST, 3)
    assert failure.evidence[-1] == f"the attempt itself ended in {kind}: it went wrong"


async def test_a_crash_on_a_card_of_our_own_stays_what_it_is(attempt):
    attempt.inner.outcome = AttemptOutcome(failure=crash(FailureKind.OUT_OF_MEMORY))
    assert (await attempt.run()).failure == crash(FailureKind.OUT_OF_MEMORY)


# --- processes that cannot be ended


async def test_a_process_that_stays_costs_the_card_and_the_next_attempt_runs_elsewhere(attempt):
    attempt.inner.stays = True
    outcome = await attempt.run()
    assert outcome.measurement is None
    assert outcome.failure.kind is FailureKind.HOST_FAULT
    assert f"process {ENGINE}" in outcome.failure.detail
    attempt.inner.stays = False
    outcome = await attempt.run()
    assert outcome.failure is None
    assert attempt.inner.jobs[-1].config.env["CUDA_VISIBLE_DEVICES"] == SECOND.uuid


async def test_survivors_that_nvml_does_not_list_cost_all_cards_of_the_attempt(attempt, failure):
    left = StopReport(exit_code=None, term_s=5.0, killed=(ENGINE,), left=(ENGINE,))
    told = failure(FailureKind.HOST_FAULT, Blame.HOST, retryable=True)
    attempt.inner.outcome = AttemptOutcome(failure=told, stop=left)
    attempt.nvml.lists_pids = False
    assert (await attempt.run()).failure is told
    assert attempt.hold.gpus == ()
    assert attempt.hold.cards_for(1) == (SECOND,)


async def test_without_another_card_the_study_pauses(attempt):
    attempt.inner.stays = True
    attempt.nvml.cards = (FIRST,)
    attempt.hold._candidates = (FIRST,)
    await attempt.run()
    with pytest.raises(HostError, match=f"process {ENGINE} "):
        await attempt.run()


# --- trouble


async def test_a_driver_that_fails_meanwhile_is_told_once_the_engine_is_gone(attempt):
    attempt.inner.meanwhile = lambda: setattr(attempt.nvml, "broken", "the card is lost")
    with pytest.raises(HostError, match="the card is lost"):
        await attempt.run()
    assert attempt.nvml.tenants[FIRST.uuid] == {}, "the attempt went to its end"


async def test_what_ends_the_attempt_is_told_as_it_is_and_the_watch_ends(attempt):
    attempt.inner.trouble = HostError("no free port")
    with pytest.raises(HostError, match="no free port"):
        await attempt.run()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "gpu-watch"]


async def test_an_interruption_ends_the_watch(attempt):
    def interrupt() -> None:
        asyncio.current_task().cancel()
        # A thread that waits for further looks would wait for a minute: nobody looks after the interruption.
        attempt.inner.looked_at = functools.partial(asyncio.sleep, 0)

    attempt.inner.meanwhile = interrupt
    with pytest.raises(asyncio.CancelledError):
        await attempt.run()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "gpu-watch"]


async def test_a_full_disk_is_told(attempt):
    (attempt.job.folder / f"{GPU_MEMORY}.tmp").mkdir()
    with pytest.raises(HostError, match=rf"cannot write .*{GPU_MEMORY}"):
        await attempt.run()
