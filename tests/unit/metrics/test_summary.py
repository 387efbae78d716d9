"""The table of metrics: exactly the names of the registry, and the figures behind them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from optimizer.core.measurement import EngineMetrics, GpuUsage, HostUsage, LoadResult, Measurement
from optimizer.core.stop_reason import StopReason
from optimizer.metrics import METRICS, summarize
from tests.unit.metrics.observed import role

ISSUE_NAMES = {"output_tokens_per_s", "p99_e2e_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "preemptions"}


def load(**fields: object) -> LoadResult:
    plain: dict[str, object] = {
        "window_start_s": 0.0,
        "window_s": 4.0,
        "scheduled_s": np.array([0.0, 1.0, 2.0]),
        "sent_s": np.array([0.1, 1.0, 2.0]),
        "first_token_s": np.array([0.5, 1.25, math.nan]),
        "last_token_s": np.array([2.5, 2.25, math.nan]),
        "prompt_tokens": np.array([10, 20, 40]),
        "output_tokens": np.array([5, 3, 0]),
        "errors": (None, None, "unfinished"),
        "itl_s": np.array([0.5] * 6),
        "window_output_tokens": 9,
        "window_requests": 2,
    }
    return LoadResult(**(plain | fields))  # type: ignore[arg-type]


def empty() -> LoadResult:
    none, no_ints = np.array([]), np.array([], dtype=np.int64)
    return LoadResult(0.0, 0.0, none, none, none, none, no_ints, no_ints, (), none, 0, 0)


def test_names_are_those_of_the_registry_whatever_was_measured() -> None:
    for result in (load(), empty()):
        values = summarize(Measurement(result, EngineMetrics(), HostUsage()))
        assert set(values) == set(METRICS)
        json.dumps(values, allow_nan=False)
    assert set(METRICS) >= ISSUE_NAMES


def test_requests_that_were_under_way_when_the_load_was_ended_have_not_failed() -> None:
    broken_off = Measurement(load(stopped_by=StopReason.SATURATED), EngineMetrics(), HostUsage())
    assert summarize(broken_off)["error_rate"] == 0.0
    drained = Measurement(load(stopped_by=StopReason.BUDGET), EngineMetrics(), HostUsage())
    assert summarize(drained)["error_rate"] == pytest.approx(1 / 3)


def test_the_figures() -> None:
    engine = EngineMetrics(preemptions=3.0, kv_cache_usage_max=0.9)
    values = summarize(Measurement(load(), engine, HostUsage(engine_cpu_cores=1.5, client_lag_p99_ms=2.0)))
    assert values["output_tokens_per_s"] == 2.25
    assert values["total_tokens_per_s"] == (9 + 30) / 4
    assert values["requests_per_s"] == 0.5
    assert values["error_rate"] == pytest.approx(1 / 3)
    assert values["requests_counted"] == 3.0
    assert values["window_s"] == 4.0
    assert values["mean_e2e_ms"] == pytest.approx((2500 + 1250) / 2)
    assert values["p50_ttft_ms"] == pytest.approx((500 + 250) / 2)
    assert values["mean_tpot_ms"] == pytest.approx(500.0)
    assert values["p99.9_itl_ms"] == pytest.approx(500.0)
    assert values["preemptions"] == 3.0
    assert values["kv_cache_usage_max"] == 0.9
    assert values["waiting_mean"] is None
    assert values["engine_cpu_cores"] == 1.5
    assert values["client_lag_p99_ms"] == 2.0


def test_threads_cards_and_energy() -> None:
    gpu = GpuUsage(gpu_util_mean=0.4, gpu_power_w_mean=300.0, gpu_energy_j=4.5, gpu_throttled_share=0.0)
    roles = (role("api_server", 0.9, total=1.2), role("other", 0.1))
    values = summarize(Measurement(load(), EngineMetrics(), HostUsage(roles=roles, cpu_energy_j=18.0), gpu))
    assert (values["api_server_thread_cores"], values["api_server_cpu_cores"]) == (0.9, 1.2)
    assert values["engine_core_thread_cores"] is None
    assert (values["gpu_util_mean"], values["gpu_throttled_share"]) == (0.4, 0.0)
    assert values["output_tokens_per_j"] == 2.0
    on_cpu = summarize(Measurement(load(), EngineMetrics(), HostUsage(cpu_energy_j=18.0)))
    assert on_cpu["output_tokens_per_j"] == 0.5
    assert summarize(Measurement(load(), EngineMetrics(), HostUsage()))["output_tokens_per_j"] is None


def test_without_a_success_there_is_no_latency() -> None:
    values = summarize(Measurement(load(errors=("x", "y", "z"), itl_s=np.array([])), EngineMetrics(), HostUsage()))
    assert values["p99_e2e_ms"] is None
    assert values["p99_itl_ms"] is None
    assert values["error_rate"] == 1.0


def test_every_metric_is_explained() -> None:
    for name, metric in METRICS.items():
        assert metric.description[0].isupper()
        assert metric.unit or name.split("_")[-1] not in ("ms", "s", "bytes")
