"""One attempt on a simulated engine that goes wrong in every way it knows: what the failure is, and what is kept."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.failure import Blame, FailureKind, MemoryPhase
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineLauncher, EngineProgram
from optimizer.host.supervisor import Supervisor
from optimizer.load import Workload
from optimizer.tuning.stage_clock import StageClock
from optimizer.tuning.trial_pipeline import REQUEST_SAMPLES, AttemptOutcome, TrialJob, TrialPipeline
from tests.drill import SPACE
from tests.integration.supervision.helpers import SIMULATED

HANG_S = 2.0
"""Twice as long a start may neither log nor compute: on a loaded machine a Python program takes seconds to begin."""
START_LIMIT_S = 60.0
WORKLOAD = Workload.model_validate(SPACE["workload"])
UNDER_LOAD = 30
"""Completion requests after which the load is in its window; two for the proof and the warm-up come before."""

Attempt = Callable[..., Awaitable[AttemptOutcome]]


@pytest_asyncio.fixture
async def attempt(tmp_path: Path) -> AsyncIterator[Attempt]:
    """Makes one attempt with scripted faults; nothing of the engine is left afterwards."""
    supervisor = await Supervisor.start(log=tmp_path / "guard.log")
    launcher = EngineLauncher(supervisor, EngineProgram(head=SIMULATED, display_head=SIMULATED))

    async def make(
        *faults: Mapping[str, Any],
        flags: Mapping[str, FlagValue] | None = None,
        start_limit_s: float = START_LIMIT_S,
        hang_s: float = HANG_S,
    ) -> AttemptOutcome:
        env = {"AUTOTUNE_SIM_FAULTS": json.dumps(faults), "AUTOTUNE_SIM_SPEED": "100"}
        config = EngineConfig("simulated", "simulated", flags or {}, env)
        pipeline = TrialPipeline(launcher, WORKLOAD, hang_s=hang_s)
        job = TrialJob("study/0/1", config, None, tmp_path, 0, 1, start_limit_s)
        clock = StageClock(lambda stages: None)
        async with asyncio.timeout(90):
            outcome = await pipeline.run(job, clock, on_launch=lambda argv: None, on_progress=lambda progress: None)
        assert outcome.stop is not None
        assert outcome.stop.left == ()
        return outcome

    yield make
    await supervisor.close()


def told(outcome: AttemptOutcome) -> tuple[FailureKind, Stage, Blame]:
    assert outcome.measurement is None
    assert outcome.failure is not None
    return outcome.failure.kind, outcome.failure.stage, outcome.failure.blame


@pytest.mark.parametrize(
    ("fault", "kind", "blame"),
    [
        ("port_taken", FailureKind.PORT_TAKEN, Blame.HOST),
        ("port_stolen", FailureKind.PORT_TAKEN, Blame.HOST),
        ("gpu_busy", FailureKind.GPU_BUSY, Blame.HOST),
        ("kv_too_small", FailureKind.KV_CACHE_TOO_SMALL, Blame.CONFIG),
        ("oom_loading", FailureKind.OUT_OF_MEMORY, Blame.CONFIG),
        ("die_loading", FailureKind.UNKNOWN, Blame.CONFIG),
        ("never_ready", FailureKind.ENGINE_HANG, Blame.CONFIG),
        ("foreign_model", FailureKind.PORT_TAKEN, Blame.HOST),
    ],
)
async def test_what_goes_wrong_at_the_start(attempt, fault, kind, blame):
    outcome = await attempt({"fault": fault})
    assert told(outcome) == (kind, Stage.LAUNCHING, blame)
    assert outcome.failure.evidence
    assert outcome.startup is None


async def test_a_start_that_is_slow_or_busy_is_no_hang(attempt):
    """Each lasts longer than a start may stand still."""
    lasts_s = 1.25 * HANG_S
    outcome = await attempt({"fault": "slow_start", "amount": lasts_s}, {"fault": "busy_start", "amount": lasts_s})
    assert outcome.startup is not None, outcome.failure


async def test_a_slow_start_that_gets_on_meets_its_deadline(attempt):
    outcome = await attempt({"fault": "slow_start", "amount": 60}, start_limit_s=1.0)
    assert told(outcome) == (FailureKind.STARTUP_TIMEOUT, Stage.LAUNCHING, Blame.CONFIG)


@pytest.mark.parametrize("log_fault", ["flood_log", "bad_utf8_log"])
async def test_a_log_of_any_length_and_any_bytes_is_told(attempt, log_fault):
    outcome = await attempt({"fault": log_fault}, {"fault": "kv_too_small"})
    assert told(outcome) == (FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, Blame.CONFIG)
    assert outcome.failure.facts["short_gib"] > 0


async def test_an_engine_that_prints_nothing_is_unknown(attempt):
    outcome = await attempt({"fault": "silent_log"}, {"fault": "oom_loading"})
    assert told(outcome) == (FailureKind.UNKNOWN, Stage.LAUNCHING, Blame.CONFIG)
    assert (outcome.failure.evidence, outcome.failure.exit_code) == ((), 1)


async def test_a_start_is_no_pass_and_memory_that_runs_out_under_load_is_the_settings_fault(attempt, tmp_path):
    outcome = await attempt({"fault": "oom_under_load", "after_requests": UNDER_LOAD})
    assert told(outcome) == (FailureKind.OUT_OF_MEMORY, Stage.MEASURING, Blame.CONFIG)
    assert outcome.failure.phase is MemoryPhase.SERVING
    assert outcome.failure.exit_code == 0, "the API server's, which tells nothing"
    assert not outcome.failure.retryable
    assert "CUDA out of memory" in (tmp_path / "engine.log").read_text()


@pytest.mark.parametrize(
    ("fault", "kind"), [("die_serving", FailureKind.ENGINE_CRASH), ("exit_silently", FailureKind.UNKNOWN)]
)
async def test_an_engine_that_dies_under_load_is_no_success_though_it_exits_with_0(attempt, fault, kind):
    outcome = await attempt({"fault": fault, "after_requests": UNDER_LOAD})
    assert told(outcome) == (kind, Stage.MEASURING, Blame.CONFIG)
    assert outcome.failure.exit_code == 0


@pytest.mark.parametrize(
    ("after_requests", "stage"), [(0, Stage.LAUNCHING), (1, Stage.WARMING_UP), (UNDER_LOAD, Stage.MEASURING)]
)
async def test_an_engine_that_freezes_behind_a_healthy_server_hangs(attempt, monkeypatch, after_requests, stage):
    if stage is Stage.LAUNCHING:
        monkeypatch.setattr("optimizer.engine.launch.PROOF_LIMIT_S", HANG_S)
    begun_s = time.monotonic()
    outcome = await attempt({"fault": "hang_health_200", "after_requests": after_requests})
    assert told(outcome) == (FailureKind.ENGINE_HANG, stage, Blame.CONFIG)
    assert outcome.failure.retryable
    assert time.monotonic() - begun_s < 30


async def test_what_came_before_a_hang_is_kept_as_evidence(attempt, tmp_path):
    outcome = await attempt({"fault": "hang_health_200", "after_requests": UNDER_LOAD})
    assert outcome.measurement is None
    rows = list(csv.DictReader(gzip.decompress((tmp_path / REQUEST_SAMPLES).read_bytes()).decode().splitlines()))
    assert any(row["error"] == "" for row in rows)
    assert any(row["error"] == "unfinished" for row in rows)


@pytest.mark.parametrize("fault", ["slow_health", "garbage_metrics"])
async def test_a_slow_health_or_metrics_that_are_garbage_are_no_death(attempt, fault):
    outcome = await attempt({"fault": fault, "after_requests": 2}, hang_s=30.0)
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement.load.ok.all()
