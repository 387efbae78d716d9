"""Every metric of a measurement: its name, unit, meaning, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]

LATENCIES = {
    "ttft": "Time to first token, from the scheduled start",
    "tpot": "Mean time per output token after the first, of each request",
    "itl": "Gap between two tokens of one request",
    "e2e": "Time from the scheduled start to the last token",
}
"""Latency to description."""

STATISTICS: dict[str, float | None] = {"mean": None, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
"""Name of a statistic to its percentile; None for the mean."""


ROLE_WORDS = {
    "api_server": "the API server",
    "engine_core": "EngineCore",
    "worker": "the workers",
    "client": "the load generator",
}
"""Role of a process to its words; see `threads.ROLES`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        unit: As printed after the value; empty for a plain number.
        description: What it is, in a few words.
        better: Which way is better; None where neither is.
    """

    unit: str
    description: str
    better: Better | None


def _latency_metrics() -> dict[str, Metric]:
    return {
        f"{statistic}_{latency}_ms": Metric("ms", f"{words}: {_spoken(statistic)} of the successful requests", "lower")
        for latency, words in LATENCIES.items()
        for statistic in STATISTICS
    }


def _role_metrics() -> dict[str, Metric]:
    threads = {
        f"{role}_thread_cores": Metric("cores", f"Busiest thread of {words}: near 1 it is a bottleneck", "lower")
        for role, words in ROLE_WORDS.items()
    }
    sums = {
        f"{role}_cpu_cores": Metric("cores", f"CPU time of {words} per second", "lower")
        for role, words in ROLE_WORDS.items()
        if role != "client"
    }
    return threads | sums


def _spoken(statistic: str) -> str:
    return "mean" if statistic == "mean" else f"{statistic.removeprefix('p')}th percentile"


METRICS: dict[str, Metric] = {
    "output_tokens_per_s": Metric("tok/s", "Output tokens that arrived in the window", "higher"),
    "total_tokens_per_s": Metric("tok/s", "The same, plus the prompts of the requests counted in it", "higher"),
    "requests_per_s": Metric("req/s", "Requests that ended well in the window", "higher"),
    "goodput_requests_per_s": Metric("req/s", "Of these, the ones that met every limit", "higher"),
    "capacity_requests_per_s": Metric("req/s", "Highest arrival rate whose verdict is feasible", "higher"),
    "knee_requests_per_s": Metric("req/s", "Arrival rate at which the limits seem to be used up", "higher"),
    **_latency_metrics(),
    "error_rate": Metric("", "Share of the counted requests that failed, of those that ended", "lower"),
    "requests_counted": Metric("", "Requests scheduled in the window", None),
    "window_s": Metric("s", "Length of the measuring window", None),
    "preemptions": Metric("", "Requests thrown out of the KV cache and recomputed", "lower"),
    "prefix_cache_hit_rate": Metric("", "Share of prompt tokens looked up that the prefix cache held", "higher"),
    "spec_acceptance_rate": Metric("", "Share of drafted tokens that were accepted", "higher"),
    "kv_cache_usage_mean": Metric("", "Share of the KV cache in use, mean", None),
    "kv_cache_usage_max": Metric("", "Share of the KV cache in use, largest sample", None),
    "running_mean": Metric("", "Requests in the running batch, mean", None),
    "running_max": Metric("", "Requests in the running batch, largest sample", None),
    "waiting_mean": Metric("", "Requests queued in the engine, mean", "lower"),
    "waiting_max": Metric("", "Requests queued in the engine, largest sample", "lower"),
    "waiting_capacity_mean": Metric("", "Of these, those that the scheduler had no room for, mean", "lower"),
    "waiting_deferred_mean": Metric("", "Of these, those that wait for something else, mean", "lower"),
    "engine_ttft_mean_ms": Metric("ms", "Time to first token as the engine sees it, mean", "lower"),
    "engine_itl_mean_ms": Metric("ms", "Time between two tokens as the engine core stamps them, mean", "lower"),
    "engine_queue_mean_ms": Metric("ms", "Time in the engine before a request is first scheduled, mean", "lower"),
    "kv_cache_tokens": Metric("tok", "Size of the KV cache", "higher"),
    "kv_cache_tokens_predicted": Metric("tok", "The same, as it was predicted before the launch", None),
    "requested_memory_bytes": Metric("B", "Memory of one device that the engine took as its own", None),
    "model_weights_bytes": Metric("B", "Weights that it loaded on one device", None),
    "engine_cpu_cores": Metric("cores", "CPU time of the engine per second", "lower"),
    "client_cpu_cores": Metric("cores", "CPU time of the load generator per second", "lower"),
    "engine_rss_bytes": Metric("B", "Resident memory of the engine's processes, shared pages counted in each", "lower"),
    "client_lag_p99_ms": Metric("ms", "Delay of the load generator's own event loop, 99th percentile", "lower"),
    "engine_cpus": Metric("cores", "Cores that the engine may run on", None),
    **_role_metrics(),
    "gpu_util_mean": Metric("", "Share of the time in which any GPU kernel ran, mean over the engine's GPUs", None),
    "gpu_mem_util_mean": Metric("", "Share of the time in which GPU memory was read or written, mean", None),
    "gpu_power_w_mean": Metric("W", "Draw of the engine's GPUs together", "lower"),
    "gpu_energy_j": Metric("J", "Energy of the engine's GPUs in the window", "lower"),
    "gpu_memory_used_max_bytes": Metric("B", "Memory in use on the engine's GPUs together, largest sample", None),
    "gpu_sm_clock_mhz_mean": Metric("MHz", "Clock of the GPUs' cores, mean", None),
    "gpu_throttled_share": Metric("", "Share of samples in which power or heat held the clocks down", "lower"),
    "cpu_energy_j": Metric("J", "Energy of the host's CPU packages in the window", "lower"),
    "output_tokens_per_j": Metric("tok/J", "Output tokens per joule of the GPUs, or of the CPU without any", "higher"),
}
"""Every metric by name, in the order of tables."""
