"""What bound a run: the one resource that had nothing left while the others had.

A tuner that does not know it tunes noise: where one CPU thread of the server passes every token, no flag of the
scheduler changes throughput, and differences between trials are chance.

The rules are asked in order; the first that fires names the bound. A thread that sleeps when it has nothing to do and
yet uses a whole core is the limit whatever else is busy, so client and API server come first; so is an API server that
rests between waves of requests which it holds (`front_end`). EngineCore and workers
may spin while they wait for the GPU: they are the limit only if the GPU idles meanwhile. NVML's utilization is the
share of time in which any kernel ran, however small, so a busy GPU is named last, after all that keeps batches small.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from optimizer.core.client_health import FULL_CORE
from optimizer.core.measurement import Measurement, ThreadUse
from optimizer.metrics.front_end import holding_thread, outside_engine
from optimizer.metrics.threads import API_SERVER, CLIENT, ENGINE_CORE, WORKER, busiest

BUSY_THREAD = FULL_CORE
"""Of a core. An asyncio server that is fed in bursts queues for most of the time above this; below it there is room."""
BUSY_GPU = 0.85
"""Share of time with a kernel running. Gaps between well-batched decode steps stay under a tenth of a step."""
BUSY_MEMORY = 0.7
"""NVML's share of time in which memory was accessed. 0.53 was seen on an H200 at its power limit under long prompts and
batches of 121, some 500 TFLOP/s by the tokens served: that card computes (tests/data/h200/bound.jsonl)."""
BUSY_CORES = 0.9
"""Of all the cores that the engine may use; the kernel and the sampler take the rest."""
FULL_POOL = 0.9
"""Mean use of the KV cache. A pool that requests wait for is refilled as soon as one ends."""
FULL_BATCH = 0.95
"""Mean running requests against max-num-seqs; a slot is empty for the step in which its request ended."""
QUEUE = 1.0
"""Mean waiting requests; fewer are those that just arrived and are scheduled in the next step."""
PREEMPTED = 0.01
"""Preemptions per request counted; a rarer one does not decide throughput."""
SERVED = 0.95
"""Requests that ended against those that arrived in an open loop; Poisson arrivals of a few hundred vary by 5 %."""
LAG_OF_ITL = 0.5
LAG_MS = 20.0
"""The client's event loop is late by half a token gap, and by more than chance: its times are its own."""


class BoundKind(enum.StrEnum):
    """What had nothing left; the value is the name in JSON."""

    CLIENT = "client"
    CPU_CORES = "cpu_cores"
    API_SERVER = "api_server"
    ENGINE_CORE = "engine_core"
    WORKER = "worker"
    ARRIVALS = "arrivals"
    KV_POOL = "kv_pool"
    SCHEDULER = "scheduler"
    GPU_BANDWIDTH = "gpu_bandwidth"
    GPU_COMPUTE = "gpu_compute"
    UNKNOWN = "unknown"


_WORDS = {
    BoundKind.CLIENT: "the load client",
    BoundKind.CPU_CORES: "the CPU cores",
    BoundKind.API_SERVER: "the API server",
    BoundKind.ENGINE_CORE: "EngineCore",
    BoundKind.WORKER: "a worker's CPU thread",
    BoundKind.ARRIVALS: "the arrivals",
    BoundKind.KV_POOL: "the KV pool",
    BoundKind.SCHEDULER: "the scheduler's limits",
    BoundKind.GPU_BANDWIDTH: "the GPU's memory bandwidth",
    BoundKind.GPU_COMPUTE: "the GPU's compute",
    BoundKind.UNKNOWN: "nothing that was seen",
}
_NOTE = "bound by "


@dataclass(frozen=True, slots=True)
class Bound:
    """What bound a run.

    Attributes:
        kind: The resource.
        detail: Why, with figures, in one sentence.
        evidence: What else was seen, one figure each.
    """

    kind: BoundKind
    detail: str
    evidence: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """One line for a trial's notes; `bound_in` finds the kind in it again."""
        seen = f" ({'; '.join(self.evidence)})" if self.evidence else ""
        return f"{_NOTE}{_WORDS[self.kind]}: {self.detail}{seen}"


@dataclass(frozen=True, slots=True)
class BoundContext:
    """What the setting and the load allow; None where it is not known.

    Attributes:
        max_num_seqs: Most requests in a batch.
        max_num_batched_tokens: Most tokens in a step.
        in_flight: Requests under way in a closed loop.
        offered_per_s: Requests that arrive per second in an open loop.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    in_flight: int | None = None
    offered_per_s: float | None = None


def judge_bound(measurement: Measurement, context: BoundContext) -> Bound:
    """What bound the run, from the window's evidence."""
    for kind, rule in _RULES:
        detail = rule(measurement, context)
        if detail is not None:
            return Bound(kind, detail, _evidence(measurement))
    return Bound(BoundKind.UNKNOWN, _nothing(measurement, context), _evidence(measurement))


def bound_in(notes: Iterable[str]) -> BoundKind | None:
    """The kind that the last note of a bound among a trial's notes names; None when there is none."""
    found: BoundKind | None = None
    for note in notes:
        # The notes of an attempt begin with its number.
        text = note.partition(": ")[2] if note.startswith("attempt ") else note
        for kind, words in _WORDS.items():
            if text.startswith(f"{_NOTE}{words}: "):
                found = kind
    return found


def _client(measurement: Measurement, _: BoundContext) -> str | None:
    thread, health = busiest(measurement.host.roles, CLIENT), measurement.load.client
    if thread is not None and _demand(thread) >= BUSY_THREAD:
        waited = thread.waiting or 0.0
        starved = f" and waited for one for {waited:.0%} of the time" if thread.cores < BUSY_THREAD else ""
        return f"{_busy(thread)}{starved}; what it measures is its own delay"
    if health is not None and health.busiest_cores >= BUSY_THREAD:
        return f"its busiest process used {health.busiest_cores:.2f} of a core; what it measures is its own delay"
    lag_ms, itl_s = measurement.host.client_lag_p99_ms, measurement.load.itl_s
    # The mean, since of tokens that come in one chunk all but the first have no gap at all.
    gap_ms = float(np.mean(itl_s)) * 1000.0 if itl_s.size else 0.0
    if lag_ms is not None and lag_ms > max(LAG_MS, LAG_OF_ITL * gap_ms):
        return f"its event loop was {lag_ms:.0f} ms late (P99), and a request's tokens come every {gap_ms:.0f} ms"
    return None


def _cpu_cores(measurement: Measurement, _: BoundContext) -> str | None:
    host = measurement.host
    used, there = host.engine_cpu_cores, host.engine_cpus
    if used is None or there is None or used < BUSY_CORES * there:
        return _starved(measurement)
    most = max((use for use in host.roles if use.role != CLIENT), key=lambda use: use.cores, default=None)
    whose = "" if most is None else f", most of it by {_role(most.role)} ({most.cores:.2f})"
    return f"the engine used {used:.2f} of its {there:.0f} cores{whose}"


def _starved(measurement: Measurement) -> str | None:
    """A thread that always had work and often no core to do it on."""
    for role in (API_SERVER, ENGINE_CORE, WORKER):
        thread = busiest(measurement.host.roles, role)
        if thread is None or thread.cores >= BUSY_THREAD or _demand(thread) < BUSY_THREAD:
            continue
        if role == API_SERVER or not _may_spin(measurement):
            return (
                f"the busiest thread of {_role(role)} used {thread.cores:.2f} of a core and waited for one for "
                f"{thread.waiting or 0.0:.0%} of the time: other work takes the cores"
            )
    return None


def _api_server(measurement: Measurement, context: BoundContext) -> str | None:
    thread = busiest(measurement.host.roles, API_SERVER)
    if thread is None or thread.cores < BUSY_THREAD:
        return _waves(measurement, context)
    return (
        f"{_busy(thread)}; HTTP, detokenizing and streaming of every token share it: several API servers divide it "
        "(--api-server-count)"
    )


def _waves(measurement: Measurement, context: BoundContext) -> str | None:
    held = outside_engine(measurement, context.in_flight)
    thread = holding_thread(measurement, held)
    if held is None or thread is None:
        return None
    return (
        f"{held.under_way:.1f} requests are under way, and the engine counts {held.counted:.1f}: each is outside of it "
        f"for {held.held_s:.2f} s ({held.share:.0%} of its time, {held.gaps:.0f} gaps between tokens); {_busy(thread)} "
        f"on average: it rests between the waves in which it delivers"
    )


def _engine_core(measurement: Measurement, _: BoundContext) -> str | None:
    return _idle_gpu(measurement, busiest(measurement.host.roles, ENGINE_CORE))


def _worker(measurement: Measurement, _: BoundContext) -> str | None:
    return _idle_gpu(measurement, busiest(measurement.host.roles, WORKER))


def _idle_gpu(measurement: Measurement, thread: ThreadUse | None) -> str | None:
    if thread is None or thread.cores < BUSY_THREAD or _may_spin(measurement):
        return None
    util = measurement.gpu.gpu_util_mean
    gpu = "" if util is None else f" while the GPU ran kernels for {util:.0%} of the time"
    return f"{_busy(thread)}{gpu}"


def _may_spin(measurement: Measurement) -> bool:
    """Whether a busy thread of EngineCore may just wait for the GPU: it is busy, or does not tell (a slice of one)."""
    util, on_gpu = measurement.gpu.gpu_util_mean, measurement.gpu.gpu_memory_used_max_bytes is not None
    return on_gpu if util is None else util >= BUSY_GPU


def _arrivals(measurement: Measurement, context: BoundContext) -> str | None:
    load, offered, waiting = measurement.load, context.offered_per_s, measurement.engine.waiting_mean
    if offered is None or load.window_s <= 0.0 or waiting is None or waiting >= QUEUE:
        return None
    served = load.window_requests / load.window_s
    if served < SERVED * offered:
        return None
    return f"{offered:.3g} requests arrive per second, {served:.3g} end, and none waits: the engine could do more"


def _kv_pool(measurement: Measurement, _: BoundContext) -> str | None:
    engine, counted = measurement.engine, len(measurement.load.errors)
    preemptions, used, waiting = engine.preemptions, engine.kv_cache_usage_mean, engine.waiting_mean
    if preemptions is not None and preemptions >= max(1.0, PREEMPTED * counted):
        return f"{preemptions:.0f} preemptions in {counted} requests: each is computed again"
    if used is None or waiting is None or used < FULL_POOL or waiting < QUEUE:
        return None
    return f"it is {used:.0%} full on average and {waiting:.1f} requests wait"


def _scheduler(measurement: Measurement, context: BoundContext) -> str | None:
    engine, most = measurement.engine, context.max_num_seqs
    waiting, running = engine.waiting_mean, engine.running_mean
    if waiting is None or running is None or waiting < QUEUE:
        return None
    if most is not None and running >= FULL_BATCH * most:
        return f"{running:.1f} requests run of the {most} that max-num-seqs allows, and {waiting:.1f} wait"
    util = measurement.gpu.gpu_util_mean
    if util is None or util >= BUSY_GPU:
        # A queue for the token budget of a GPU that is busy is a queue for the GPU.
        return None
    budget = context.max_num_batched_tokens
    allowed = "max-num-batched-tokens" if budget is None else f"max-num-batched-tokens {budget}"
    return f"{waiting:.1f} requests wait though batch, KV cache and GPU have room: {allowed} is spent in every step"


def _gpu_bandwidth(measurement: Measurement, _: BoundContext) -> str | None:
    memory = measurement.gpu.gpu_mem_util_mean
    if memory is None or memory < BUSY_MEMORY or not _gpu_is_busy(measurement):
        return None
    return f"kernels ran for {measurement.gpu.gpu_util_mean:.0%} of the time, with memory in use for {memory:.0%}"


def _gpu_compute(measurement: Measurement, _: BoundContext) -> str | None:
    if not _gpu_is_busy(measurement):
        return None
    return f"kernels ran for {measurement.gpu.gpu_util_mean:.0%} of the time"


_RULES: tuple[tuple[BoundKind, Callable[[Measurement, BoundContext], str | None]], ...] = (
    (BoundKind.CLIENT, _client),
    (BoundKind.CPU_CORES, _cpu_cores),
    (BoundKind.API_SERVER, _api_server),
    (BoundKind.ENGINE_CORE, _engine_core),
    (BoundKind.WORKER, _worker),
    (BoundKind.ARRIVALS, _arrivals),
    (BoundKind.KV_POOL, _kv_pool),
    (BoundKind.SCHEDULER, _scheduler),
    (BoundKind.GPU_BANDWIDTH, _gpu_bandwidth),
    (BoundKind.GPU_COMPUTE, _gpu_compute),
)


def _nothing(measurement: Measurement, context: BoundContext) -> str:
    running, in_flight = measurement.engine.running_mean, context.in_flight
    if running is None or in_flight is None:
        return "no thread, no card and no limit was at its end"
    if running >= FULL_BATCH * in_flight:
        return f"all {in_flight} requests in flight run, and no limit was at its end: more in flight would tell"
    return f"{running:.1f} of {in_flight} requests in flight run; the others are between client and scheduler"


def _gpu_is_busy(measurement: Measurement) -> bool:
    util = measurement.gpu.gpu_util_mean
    return util is not None and util >= BUSY_GPU


def _demand(thread: ThreadUse) -> float:
    """Share of the time in which the thread ran or would have run, had it had a core."""
    return thread.cores + (thread.waiting or 0.0)


def _busy(thread: ThreadUse) -> str:
    return f"its busiest thread ({thread.process}, {thread.thread}) used {thread.cores:.2f} of a core"


def _evidence(measurement: Measurement) -> tuple[str, ...]:
    engine, gpu = measurement.engine, measurement.gpu
    lines = [f"{_role(use.role)} thread {use.busiest.cores:.2f} of a core" for use in measurement.host.roles]
    figures: tuple[tuple[str, float | None, str], ...] = (
        ("GPU", gpu.gpu_util_mean, ".0%"),
        ("GPU memory access", gpu.gpu_mem_util_mean, ".0%"),
        ("KV cache", engine.kv_cache_usage_mean, ".0%"),
        ("running", engine.running_mean, ".1f"),
        ("waiting", engine.waiting_mean, ".1f"),
    )
    return (*lines, *(f"{name} {format(value, style)}" for name, value, style in figures if value is not None))


def _role(role: str) -> str:
    return {ENGINE_CORE: "EngineCore", API_SERVER: "API server"}.get(role, role)
