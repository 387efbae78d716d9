"""Requests that the API server holds back: the rows of two H200 runs, and each condition alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.measurement import EngineMetrics, GpuUsage, LoadResult, Measurement
from optimizer.metrics import BoundContext, BoundKind, judge_bound
from optimizer.metrics.front_end import outside_engine
from tests.unit.metrics.observed import load, measured, role

H200 = Path(__file__).parents[2] / "data" / "h200"
STUDY, PROBE = "study_qwen13b_short.jsonl", "bound.jsonl"
IN_FLIGHT = {STUDY: 64, PROBE: 128}
HELD = {1, 2, 3, 4, 6, 7, 8, 1000201, 1000202}
"""Trials and confirming runs that delivered in waves: a P50 ITL of 0 and a busiest thread below a full core."""
QUEUED = {0, 1000200, 1000203}
"""The baseline, which ran 32 of 64."""


def rows(name: str) -> list[dict[str, Any]]:
    """The lines that hold a measurement; the last of the study was cut off."""
    told = [json.loads(line) for line in (H200 / name).read_text(encoding="utf-8").splitlines()]
    return [row for row in told if row["metrics"] is not None]


def loaded(per_s: float, e2e_s: float, *, requests: int = 400) -> LoadResult:
    """Requests that ended at an even rate, all after the same time."""
    window_s = requests / per_s
    at = np.linspace(0.0, window_s, requests, endpoint=False)
    return load(requests, window_s=window_s, scheduled_s=at, sent_s=at, last_token_s=at + e2e_s)


def measurement_of(row: dict[str, Any], in_flight: int) -> Measurement:
    """The row's figures. No row has a mean E2E: the P50 stands in, or what Little's law makes of the closed loop."""
    told = row["metrics"]
    per_s = told["requests_per_s"]
    e2e_s = told["p50_e2e_ms"] / 1000.0 if "p50_e2e_ms" in told else in_flight / per_s
    threads = {use["role"]: use["busiest"]["cores"] for use in row.get("roles", [])}
    names = ("api_server", "engine_core", "client")
    engine = {
        name: told.get(name)
        for name in ("preemptions", "kv_cache_usage_mean", "running_mean", "waiting_mean", "engine_itl_mean_ms")
    }
    gpu = {name: told.get(name) for name in ("gpu_util_mean", "gpu_mem_util_mean", "gpu_memory_used_max_bytes")}
    return measured(
        *(role(name, threads.get(name) or told[f"{name}_thread_cores"]) for name in names),
        engine=EngineMetrics(**engine),
        gpu=GpuUsage(**gpu),
        of=loaded(per_s, e2e_s),
    )


def told(row: dict[str, Any], name: str) -> tuple[BoundKind, str]:
    params = row.get("params", {})
    context = BoundContext(params.get("max-num-seqs"), params.get("max-num-batched-tokens"), IN_FLIGHT[name])
    bound = judge_bound(measurement_of(row, IN_FLIGHT[name]), context)
    return bound.kind, bound.detail


def test_every_run_of_the_study_in_which_the_api_server_held_requests_is_told_so() -> None:
    found = {row["number"]: told(row, STUDY) for row in rows(STUDY)}
    assert set(found) == HELD | QUEUED | {5}
    assert {number for number, (_, detail) in found.items() if "are under way" in detail} == HELD
    assert {number for number, (kind, _) in found.items() if kind is BoundKind.API_SERVER} == HELD | {5}
    assert {number for number, (kind, _) in found.items() if kind is BoundKind.SCHEDULER} == QUEUED
    assert found[7][1] == (
        "63.1 requests are under way, and the engine counts 44.0: each is outside of it for 1.29 s (30% of its time, "
        "90 gaps between tokens); its busiest thread (VLLM::APIServer_0, main) used 0.74 of a core on average: it "
        "rests between the waves in which it delivers"
    )


def test_a_gpu_that_binds_is_still_named() -> None:
    found = [told(row, PROBE)[0] for row in rows(PROBE)]
    assert found == [BoundKind.GPU_COMPUTE] * 5


@pytest.mark.parametrize("name", [STUDY, PROBE])
def test_the_thresholds_lie_well_between_the_rows(name: str) -> None:
    """By the closed loop's own number: the share and the gaps that docs/metrics.md states."""
    for row in rows(name):
        in_flight = IN_FLIGHT[name]
        measurement = measurement_of(row, in_flight)
        per_s = row["metrics"]["requests_per_s"]
        held = outside_engine(replace(measurement, load=loaded(per_s, in_flight / per_s)), in_flight)
        assert held is not None
        if row.get("number") in HELD:
            assert held.share > 0.2 and held.gaps > 47
        else:
            assert held.share < 0.081 and held.gaps < 18


def test_short_answers_on_a_cpu_are_outside_for_a_few_steps_only() -> None:
    """A busy API server would not make them held; the grid has no engine's ITL, the client's mean stands in."""
    lines = (H200.parent / "tiny_cpu_grid" / "grid.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [metrics for line in lines if (metrics := json.loads(line)["metrics"]) is not None]
    assert len(runs) == 76
    shares = []
    for told in runs:
        engine = EngineMetrics(
            running_mean=told["running_mean"],
            waiting_mean=told["waiting_mean"],
            engine_itl_mean_ms=told["mean_itl_ms"],
        )
        measurement = measured(
            role("api_server", 0.8), engine=engine, of=loaded(told["requests_per_s"], told["mean_e2e_ms"] / 1000.0)
        )
        held = outside_engine(measurement, 48)
        assert held is not None
        assert held.gaps < 7
        assert judge_bound(measurement, BoundContext(in_flight=48)).kind is not BoundKind.API_SERVER
        shares.append(held.share)
    assert 0.15 < max(shares) < 0.18, "the share alone would name some of them"


WAVES = EngineMetrics(running_mean=40.0, waiting_mean=8.0, engine_itl_mean_ms=16.0)
BUSY_GPU = GpuUsage(gpu_util_mean=0.95, gpu_memory_used_max_bytes=1e9)


def kind(engine: EngineMetrics = WAVES, *, cores: float = 0.7, e2e_s: float = 3.2, **context: Any) -> BoundKind:
    """64 under way, 48 counted: a quarter is outside, for 0.8 s or 50 gaps."""
    measurement = measured(role("api_server", cores), gpu=BUSY_GPU, engine=engine, of=loaded(20.0, e2e_s))
    return judge_bound(measurement, BoundContext(**({"in_flight": 64} | context))).kind


def test_each_condition_is_needed() -> None:
    assert kind() is BoundKind.API_SERVER
    assert kind(cores=0.4) is BoundKind.GPU_COMPUTE
    few_but_long = replace(WAVES, running_mean=47.0, engine_itl_mean_ms=8.0)
    assert kind(few_but_long) is BoundKind.GPU_COMPUTE
    assert kind(replace(WAVES, engine_itl_mean_ms=40.0)) is BoundKind.GPU_COMPUTE


def test_an_open_loop_and_figures_that_are_missing_are_not_judged() -> None:
    assert kind(in_flight=None, offered_per_s=40.0) is BoundKind.GPU_COMPUTE
    assert kind(replace(WAVES, engine_itl_mean_ms=None)) is BoundKind.GPU_COMPUTE
    assert kind(replace(WAVES, waiting_mean=None)) is BoundKind.GPU_COMPUTE
    nothing_ended = measured(role("api_server", 0.7), gpu=BUSY_GPU, engine=WAVES, of=load(0))
    assert outside_engine(nothing_ended, 64) is None


def test_users_who_pause_are_not_held() -> None:
    """64 users of whom 50 wait for an answer at a time, 48 of them in the engine."""
    assert kind(e2e_s=2.5) is BoundKind.GPU_COMPUTE


@given(st.floats(0.0, 200.0), st.floats(0.0, 200.0), st.floats(0.1, 50.0), st.floats(0.1, 60.0))
def test_no_more_than_what_is_under_way_is_held(running: float, waiting: float, per_s: float, e2e_s: float) -> None:
    engine = EngineMetrics(running_mean=running, waiting_mean=waiting, engine_itl_mean_ms=20.0)
    held = outside_engine(measured(engine=engine, of=loaded(per_s, e2e_s, requests=20)), 64)
    assert held is not None
    assert 0.0 <= held.held_s <= e2e_s * (1.0 + 1e-9)
    assert held.share <= 1.0
    assert held.under_way <= 64.0
