"""From a measurement to the flat table of metrics that records, tables and objectives read."""

from __future__ import annotations

from optimizer.core.measurement import FloatArray, HostUsage, LoadResult, Measurement
from optimizer.core.statistics import percentile
from optimizer.metrics.names import LATENCIES, ROLE_WORDS, STATISTICS

_FROM_ENGINE = (
    "preemptions",
    "prefix_cache_hit_rate",
    "spec_acceptance_rate",
    "kv_cache_usage_mean",
    "kv_cache_usage_max",
    "running_mean",
    "running_max",
    "waiting_mean",
    "waiting_max",
    "waiting_capacity_mean",
    "waiting_deferred_mean",
    "engine_ttft_mean_ms",
    "engine_itl_mean_ms",
    "engine_queue_mean_ms",
    "kv_cache_tokens",
    "kv_cache_tokens_predicted",
    "requested_memory_bytes",
    "model_weights_bytes",
)
_BY_LIMITS = ("goodput_requests_per_s", "capacity_requests_per_s", "knee_requests_per_s")
"""Told by who knows the limits, and None until then."""
_FROM_HOST = ("engine_cpu_cores", "client_cpu_cores", "engine_rss_bytes", "client_lag_p99_ms", "engine_cpus")
_FROM_GPU = (
    "gpu_util_mean",
    "gpu_mem_util_mean",
    "gpu_power_w_mean",
    "gpu_energy_j",
    "gpu_memory_used_max_bytes",
    "gpu_sm_clock_mhz_mean",
    "gpu_throttled_share",
)


def summarize(measurement: Measurement) -> dict[str, float | None]:
    """The value of every metric in `METRICS`, finite, or None where it was not observed.

    Latencies are those of the successful requests; the failed ones show in `error_rate`, and a score counts them as
    over any limit.
    """
    load = measurement.load
    values: dict[str, float | None] = _rates(load) | dict.fromkeys(_BY_LIMITS)
    for latency in LATENCIES:
        samples_s: FloatArray = getattr(load, f"{latency}_s")
        for statistic, percent in STATISTICS.items():
            values[f"{statistic}_{latency}_ms"] = _statistic_ms(samples_s, percent)
    failed = ~load.ok[~load.pending]
    values["error_rate"] = float(failed.mean()) if failed.size else None
    values["requests_counted"] = float(len(load.errors))
    values["window_s"] = load.window_s
    values |= {name: getattr(measurement.engine, name) for name in _FROM_ENGINE}
    values |= {name: getattr(measurement.host, name) for name in _FROM_HOST}
    values |= _by_role(measurement.host)
    values |= {name: getattr(measurement.gpu, name) for name in _FROM_GPU}
    values["cpu_energy_j"] = measurement.host.cpu_energy_j
    values["output_tokens_per_j"] = _tokens_per_j(measurement)
    return values


def _by_role(host: HostUsage) -> dict[str, float | None]:
    values: dict[str, float | None] = {f"{role}_thread_cores": None for role in ROLE_WORDS}
    values |= {f"{role}_cpu_cores": None for role in ROLE_WORDS if role != "client"}
    for use in host.roles:
        for name, cores in ((f"{use.role}_thread_cores", use.busiest.cores), (f"{use.role}_cpu_cores", use.cores)):
            if name in values:
                values[name] = cores
    return values


def _tokens_per_j(measurement: Measurement) -> float | None:
    """Of the cards where there are any: what the host draws besides does not depend on the setting much."""
    energy_j = measurement.gpu.gpu_energy_j if measurement.gpu.gpu_energy_j else measurement.host.cpu_energy_j
    return measurement.load.window_output_tokens / energy_j if energy_j else None


def _rates(load: LoadResult) -> dict[str, float | None]:
    names = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
    if load.window_s <= 0.0:
        return dict.fromkeys(names)
    prompt_tokens = int(load.prompt_tokens[load.ok].sum())
    amounts = (load.window_output_tokens, load.window_output_tokens + prompt_tokens, load.window_requests)
    return {name: amount / load.window_s for name, amount in zip(names, amounts, strict=True)}


def _statistic_ms(samples_s: FloatArray, percent: float | None) -> float | None:
    if samples_s.size == 0:
        return None
    value_s = float(samples_s.mean()) if percent is None else percentile(samples_s, percent)
    return None if value_s is None else value_s * 1000.0
