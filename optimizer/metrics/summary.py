"""From a measurement to the flat table of metrics that records, tables and objectives read."""

from __future__ import annotations

from optimizer.core.measurement import FloatArray, LoadResult, Measurement
from optimizer.core.statistics import percentile
from optimizer.metrics.names import LATENCIES, STATISTICS

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
    "kv_cache_tokens",
)
_FROM_HOST = ("engine_cpu_cores", "client_cpu_cores", "engine_rss_bytes", "client_lag_p99_ms")


def summarize(measurement: Measurement) -> dict[str, float | None]:
    """The value of every metric in `METRICS`, finite, or None where it was not observed.

    Latencies are those of the successful requests; the failed ones show in `error_rate`, and a score counts them as
    over any limit.
    """
    load = measurement.load
    values: dict[str, float | None] = _rates(load)
    for latency in LATENCIES:
        samples_s: FloatArray = getattr(load, f"{latency}_s")
        for statistic, percent in STATISTICS.items():
            values[f"{statistic}_{latency}_ms"] = _statistic_ms(samples_s, percent)
    counted = len(load.errors)
    values["error_rate"] = sum(error is not None for error in load.errors) / counted if counted else None
    values["requests_counted"] = float(counted)
    values["window_s"] = load.window_s
    values |= {name: getattr(measurement.engine, name) for name in _FROM_ENGINE}
    values |= {name: getattr(measurement.host, name) for name in _FROM_HOST}
    return values


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
