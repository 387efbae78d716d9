"""What bound a run: each rule where it fires, and where it must not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optimizer.core.client_health import ClientHealth
from optimizer.core.measurement import EngineMetrics, GpuUsage, HostUsage, Measurement
from optimizer.metrics import Bound, BoundContext, BoundKind, bound_in, judge_bound
from tests.unit.metrics.observed import load, measured, role

BUSY_GPU = GpuUsage(gpu_util_mean=0.98, gpu_mem_util_mean=0.3, gpu_memory_used_max_bytes=1e9)
IDLE_GPU = GpuUsage(gpu_util_mean=0.4, gpu_mem_util_mean=0.2, gpu_memory_used_max_bytes=1e9)
CALM = EngineMetrics(preemptions=0.0, kv_cache_usage_mean=0.4, running_mean=60.0, waiting_mean=0.0)


def kind(measurement: Measurement, **context: float) -> BoundKind:
    return judge_bound(measurement, BoundContext(**context)).kind  # type: ignore[arg-type]


def test_the_first_figures_of_the_h200_are_named() -> None:
    """One API server that passes every token, a GPU that is hardly used, 128 in flight."""
    bound = judge_bound(
        measured(role("api_server", 0.97), role("engine_core", 0.99), role("client", 0.4), gpu=IDLE_GPU, engine=CALM),
        BoundContext(in_flight=128),
    )
    assert bound.kind is BoundKind.API_SERVER
    assert bound.note.startswith("bound by the API server: its busiest thread (VLLM::APIServer_0, main) used 0.97")
    assert "GPU 40%" in bound.evidence
    assert "EngineCore thread 0.99 of a core" in bound.evidence


def test_a_client_at_its_end_comes_before_all_else() -> None:
    threads = (role("client", 0.9), role("api_server", 0.95))
    assert kind(measured(*threads, gpu=BUSY_GPU)) is BoundKind.CLIENT
    assert kind(measured(role("client", 0.7), gpu=BUSY_GPU)) is not BoundKind.CLIENT


def test_one_of_several_client_processes_at_its_end_is_a_client_at_its_end() -> None:
    def health(busiest: float) -> ClientHealth:
        return ClientHealth(1.0, 1.0, 1.2, busiest, 2)

    assert kind(measured(of=load(client=health(0.92)), gpu=BUSY_GPU)) is BoundKind.CLIENT
    assert kind(measured(of=load(client=health(0.6)), gpu=BUSY_GPU)) is BoundKind.GPU_COMPUTE


@pytest.mark.parametrize(
    ("lag_ms", "itl_s", "spoiled"), [(30.0, 0.02, True), (15.0, 0.02, False), (30.0, 0.1, False), (60.0, 0.1, True)]
)
def test_a_late_client_is_one_that_is_late_by_half_a_token(lag_ms: float, itl_s: float, spoiled: bool) -> None:
    host = HostUsage(client_lag_p99_ms=lag_ms)
    found = kind(measured(host=host, of=load(itl_s=itl_s), gpu=BUSY_GPU))
    assert (found is BoundKind.CLIENT) == spoiled


def test_tokens_that_come_in_bundles_have_the_gap_that_they_have_on_average() -> None:
    gaps = np.tile([0.0, 0.0, 0.0, 0.16], 100)
    host = HostUsage(client_lag_p99_ms=19.0)
    assert kind(measured(host=host, of=load(itl_s=0.0), gpu=BUSY_GPU)) is not BoundKind.CLIENT
    late = measured(host=replace(host, client_lag_p99_ms=25.0), of=replace(load(), itl_s=gaps), gpu=BUSY_GPU)
    assert (
        judge_bound(late, EMPTY).detail
        == "its event loop was 25 ms late (P99), and a request's tokens come every 40 ms"
    )


def test_an_engine_on_the_cpu_is_bound_by_its_cores() -> None:
    host = HostUsage(engine_cpu_cores=3.8, engine_cpus=4.0)
    bound = judge_bound(measured(role("api_server", 0.3), role("engine_core", 0.95, total=3.5), host=host), EMPTY)
    assert bound.kind is BoundKind.CPU_CORES
    assert "3.80 of its 4 cores, most of it by EngineCore (3.50)" in bound.detail
    assert kind(measured(host=replace(host, engine_cpu_cores=2.0))) is BoundKind.UNKNOWN


EMPTY = BoundContext()


def test_a_thread_that_waits_for_a_core_lacks_cores() -> None:
    bound = judge_bound(measured(role("api_server", 0.6, waiting=0.35), gpu=IDLE_GPU), EMPTY)
    assert bound.kind is BoundKind.CPU_CORES
    assert "the busiest thread of API server used 0.60 of a core and waited for one for 35% of the time" in bound.detail
    assert kind(measured(role("api_server", 0.6, waiting=0.1), gpu=IDLE_GPU)) is BoundKind.UNKNOWN
    assert kind(measured(role("api_server", 0.9, waiting=None), gpu=IDLE_GPU)) is BoundKind.API_SERVER
    assert kind(measured(role("engine_core", 0.5, waiting=0.5), gpu=IDLE_GPU)) is BoundKind.CPU_CORES
    assert kind(measured(role("engine_core", 0.5, waiting=0.5), gpu=BUSY_GPU)) is BoundKind.GPU_COMPUTE
    starved = judge_bound(measured(role("client", 0.4, waiting=0.6), gpu=IDLE_GPU), EMPTY)
    assert starved.kind is BoundKind.CLIENT
    assert "waited for one for 60%" in starved.detail


@pytest.mark.parametrize("name", ["engine_core", "worker"])
def test_a_thread_that_may_spin_is_at_its_end_only_while_the_gpu_idles(name: str) -> None:
    assert kind(measured(role(name, 0.99), gpu=IDLE_GPU)).value == name
    assert kind(measured(role(name, 0.99), gpu=BUSY_GPU)) is BoundKind.GPU_COMPUTE
    assert kind(measured(role(name, 0.5), gpu=IDLE_GPU)) is BoundKind.UNKNOWN


def test_without_the_gpus_utilization_a_thread_that_may_spin_proves_nothing() -> None:
    a_slice = GpuUsage(gpu_memory_used_max_bytes=1e9)
    assert kind(measured(role("engine_core", 0.99), gpu=a_slice)) is BoundKind.UNKNOWN
    assert kind(measured(role("engine_core", 0.99))) is BoundKind.ENGINE_CORE


def test_an_open_loop_that_is_served_is_bound_by_its_arrivals() -> None:
    served = measured(engine=CALM, gpu=BUSY_GPU)
    assert kind(served, offered_per_s=10.2) is BoundKind.ARRIVALS
    assert kind(served, offered_per_s=14.0) is BoundKind.GPU_COMPUTE
    queueing = measured(engine=replace(CALM, waiting_mean=5.0), gpu=BUSY_GPU)
    assert kind(queueing, offered_per_s=10.0) is BoundKind.GPU_COMPUTE
    assert kind(served) is BoundKind.GPU_COMPUTE


def test_a_full_pool_that_requests_wait_for_or_are_thrown_out_of() -> None:
    full = replace(CALM, kv_cache_usage_mean=0.96, waiting_mean=8.0)
    assert kind(measured(engine=full, gpu=BUSY_GPU)) is BoundKind.KV_POOL
    assert kind(measured(engine=replace(full, waiting_mean=0.0), gpu=BUSY_GPU)) is BoundKind.GPU_COMPUTE
    storm = judge_bound(measured(engine=replace(CALM, preemptions=40.0), gpu=BUSY_GPU), EMPTY)
    assert (storm.kind, storm.detail) == (
        BoundKind.KV_POOL,
        "40 preemptions in 100 requests: each is computed again",
    )
    rare = replace(CALM, preemptions=3.0)
    assert kind(measured(engine=rare, gpu=BUSY_GPU, of=load(1000))) is BoundKind.GPU_COMPUTE


def test_a_full_batch_with_a_queue_is_the_schedulers_limit_even_on_a_busy_gpu() -> None:
    queue = replace(CALM, running_mean=31.6, waiting_mean=90.0)
    bound = judge_bound(measured(engine=queue, gpu=BUSY_GPU), BoundContext(max_num_seqs=32))
    assert bound.kind is BoundKind.SCHEDULER
    assert bound.detail == "31.6 requests run of the 32 that max-num-seqs allows, and 90.0 wait"
    assert kind(measured(engine=queue, gpu=BUSY_GPU), max_num_seqs=64) is BoundKind.GPU_COMPUTE
    assert kind(measured(engine=replace(queue, waiting_mean=0.2), gpu=BUSY_GPU), max_num_seqs=32) is (
        BoundKind.GPU_COMPUTE
    )


def test_a_queue_before_an_idle_gpu_is_the_token_budgets() -> None:
    queue = replace(CALM, waiting_mean=20.0)
    bound = judge_bound(measured(engine=queue, gpu=IDLE_GPU), BoundContext(256, 512))
    assert bound.kind is BoundKind.SCHEDULER
    assert "max-num-batched-tokens 512" in bound.detail
    assert kind(measured(engine=queue, gpu=BUSY_GPU), max_num_seqs=256) is BoundKind.GPU_COMPUTE
    assert kind(measured(engine=queue), max_num_seqs=256) is BoundKind.UNKNOWN


def test_bandwidth_and_compute_are_told_apart_by_access_to_memory() -> None:
    assert kind(measured(gpu=replace(BUSY_GPU, gpu_mem_util_mean=0.7))) is BoundKind.GPU_BANDWIDTH
    assert kind(measured(gpu=BUSY_GPU)) is BoundKind.GPU_COMPUTE
    assert kind(measured(gpu=replace(BUSY_GPU, gpu_mem_util_mean=None))) is BoundKind.GPU_COMPUTE
    assert kind(measured(gpu=replace(IDLE_GPU, gpu_mem_util_mean=0.7))) is BoundKind.UNKNOWN


def test_when_nothing_is_at_its_end_it_is_said_where_the_requests_are() -> None:
    def detail(running: float | None) -> str:
        engine = EngineMetrics(running_mean=running)
        return judge_bound(measured(engine=engine, gpu=IDLE_GPU), BoundContext(in_flight=64)).detail

    assert "more in flight would tell" in detail(63.5)
    assert "20.0 of 64 requests in flight run; the others are between client and scheduler" in detail(20.0)
    assert detail(None) == "no thread, no card and no limit was at its end"


def test_nothing_observed_is_no_finding() -> None:
    bound = judge_bound(measured(of=load(0)), EMPTY)
    assert (bound.kind, bound.evidence) == (BoundKind.UNKNOWN, ())


@pytest.mark.parametrize("which", list(BoundKind))
def test_the_kind_is_found_again_in_the_notes(which: BoundKind) -> None:
    note = Bound(which, "why", ("GPU 40%",)).note
    assert bound_in(["the prefix cache could not be reset", note]) is which
    assert bound_in([f"attempt 2: {note}", "attempt 2: GPU 0: 1 GiB"]) is which


def test_of_two_attempts_the_later_counts_and_other_notes_do_not() -> None:
    notes = [Bound(BoundKind.CLIENT, "a").note, Bound(BoundKind.KV_POOL, "b").note, "bound by contract"]
    assert bound_in(notes) is BoundKind.KV_POOL
    assert bound_in(["bound by nobody: x", ""]) is None
