"""How numbers, metrics, limits and failures are put into words: the one place, so that every view says the same."""

from __future__ import annotations

import math
import re
import sys
from datetime import datetime

from optimizer.core.failure import Failure
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import Stage

MISSING = "-"

_LATENCY = re.compile(r"^(?P<statistic>p\d+(?:\.\d+)?|mean|max|min)_(?P<what>ttft|tpot|itl|e2e)_ms$")
_LABELS = {
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
    "prompt_tokens_per_s": "prompt tok/s",
    "requests_per_s": "requests/s",
    "goodput_requests_per_s": "good requests/s",
    "capacity_requests_per_s": "capacity, requests/s",
    "knee_requests_per_s": "limits used up at, requests/s",
    "prefix_cache_hit_rate": "prefix-cache hits",
    "spec_acceptance_rate": "draft acceptance",
    "kv_cache_usage_mean": "KV cache used, mean",
    "kv_cache_usage_max": "KV cache used, peak",
    "kv_cache_tokens": "KV cache size",
    "kv_cache_tokens_predicted": "KV cache size, predicted",
    "requested_memory_bytes": "engine memory, requested",
    "model_weights_bytes": "weights on one device",
    "running_mean": "running, mean",
    "running_max": "running, peak",
    "waiting_mean": "waiting, mean",
    "waiting_max": "waiting, peak",
    "engine_cpu_cores": "engine CPU",
    "client_cpu_cores": "client CPU",
    "engine_rss_bytes": "engine memory (RSS)",
    "client_lag_p99_ms": "client delay, P99",
    "waiting_capacity_mean": "waiting for room, mean",
    "waiting_deferred_mean": "waiting, deferred, mean",
    "engine_ttft_mean_ms": "TTFT in the engine, mean",
    "engine_itl_mean_ms": "ITL in the engine, mean",
    "engine_queue_mean_ms": "queued in the engine, mean",
    "engine_cpus": "cores of the engine",
    "api_server_thread_cores": "API server, busiest thread",
    "engine_core_thread_cores": "EngineCore, busiest thread",
    "worker_thread_cores": "workers, busiest thread",
    "client_thread_cores": "client, busiest thread",
    "api_server_cpu_cores": "API server CPU",
    "engine_core_cpu_cores": "EngineCore CPU",
    "worker_cpu_cores": "workers CPU",
    "gpu_util_mean": "GPU busy, mean",
    "gpu_mem_util_mean": "GPU memory access, mean",
    "gpu_power_w_mean": "GPU power, mean",
    "gpu_energy_j": "GPU energy",
    "gpu_memory_used_max_bytes": "GPU memory used, peak",
    "gpu_sm_clock_mhz_mean": "GPU clock, mean",
    "gpu_throttled_share": "GPU throttled",
    "cpu_energy_j": "CPU energy",
    "output_tokens_per_j": "output tok/J",
    "window_s": "window",
}
_SHARES = ("_rate", "_usage_mean", "_usage_max", "_share", "_util_mean")
_SUFFIX_UNITS = (
    ("_tokens_per_s", "tok/s"),
    ("_per_s", "/s"),
    ("_ms", "ms"),
    ("_tokens", "tokens"),
    ("_tokens_predicted", "tokens"),
    ("_s", "s"),
    ("_cores", "cores"),
    ("_w_mean", "W"),
    ("_tokens_per_j", "tok/J"),
    ("_j", "J"),
    ("_mhz_mean", "MHz"),
)
_GIB = 2**30


def metric_label(name: str) -> str:
    """A metric's name as a table shows it.

    >>> metric_label("p99_e2e_ms"), metric_label("waiting_max")
    ('P99 E2E', 'waiting, peak')
    """
    latency = _LATENCY.match(name)
    if latency:
        statistic = latency["statistic"]
        return f"{statistic.upper() if statistic.startswith('p') else statistic} {latency['what'].upper()}"
    if name in _LABELS:
        return _LABELS[name]
    stem = name.removesuffix("_ms").removesuffix("_bytes")
    return stem.replace("_per_s", "/s").replace("_", " ")


def number(value: float | None) -> str:
    """A figure with as many digits as a person reads: four at most, thousands grouped."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}" if magnitude >= 1 else f"{value:.3g}"


def metric_value(name: str, value: float | None) -> str:
    """A metric with its unit; `-` where there is no figure.

    >>> metric_value("p99_e2e_ms", 712.4), metric_value("prefix_cache_hit_rate", 0.5), metric_value("preemptions", 3.0)
    ('712 ms', '50 %', '3')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if name.endswith(_SHARES):
        percent = max(-sys.float_info.max, min(100 * value, sys.float_info.max))
        return f"{percent:.0f} %"
    if name.endswith("_bytes"):
        return f"{value / _GIB:.2f} GiB"
    if name.endswith("_ms") and abs(value) >= 10:
        return f"{value:,.0f} ms"
    unit = next((unit for suffix, unit in _SUFFIX_UNITS if name.endswith(suffix)), "")
    return f"{number(value)} {unit}".rstrip()


def table_value(name: str, value: float | None) -> str:
    """The same beside the metric's label: without a unit that the label names.

    >>> table_value("output_tokens_per_s", 512.34), table_value("p99_e2e_ms", 712.4)
    ('512.3', '712 ms')
    """
    shown = metric_value(name, value)
    figure, _, unit = shown.partition(" ")
    return figure if unit and metric_label(name).endswith(unit) else shown


def change(value: float | None, reference: float | None) -> str:
    """How far a value lies from a reference, in percent of the reference.

    >>> change(134.0, 100.0), change(95.5, 100.0)
    ('+34 %', '-4.5 %')
    """
    if value is None or reference is None or reference == 0:
        return MISSING
    percent = 100 * (value / reference - 1)
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.1f} %"


def duration(seconds: float | None) -> str:
    """A span of time.

    >>> duration(41.2), duration(200), duration(3900)
    ('41 s', '3 min 20 s', '1 h 05 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(when: datetime | None) -> str:
    """A point in time, in UTC to the second."""
    return MISSING if when is None else when.strftime("%Y-%m-%d %H:%M:%S UTC")


def stage_name(stage: Stage) -> str:
    """A stage as a word in a sentence."""
    return stage.value.replace("_", " ")


def limit_text(constraint: Constraint) -> str:
    """One limit and what was measured against it.

    The sign between them tells the verdict: `<=` holds, `>` is broken, `?` is not decided by the data.
    """
    sign = {Verdict.FEASIBLE: "<=", Verdict.INFEASIBLE: ">", Verdict.UNDECIDED: "?"}[constraint.verdict]
    observed = metric_value(constraint.name, constraint.observed)
    return f"{metric_label(constraint.name)} {observed} {sign} {metric_value(constraint.name, constraint.limit)}"


def interval_text(constraint: Constraint) -> str:
    """The interval that a limit's verdict rests on, such as `690 ms to 744 ms`; `-` where it rests on none."""
    if constraint.low is None and constraint.high is None and constraint.confidence is None:
        return MISSING
    low = "unbounded" if constraint.low is None else metric_value(constraint.name, constraint.low)
    high = "unbounded" if constraint.high is None else metric_value(constraint.name, constraint.high)
    return f"{low} to {high}"


def confidence_text(confidence: float | None) -> str:
    """How sure an interval is, such as `90 %`; records that do not tell are of when it was always 95 %."""
    return f"{100 * (0.95 if confidence is None else confidence):.4g} %"


def requests_text(constraint: Constraint) -> str:
    """How many values a limit was judged by, and how many independent ones they are worth: `640 (worth 210)`."""
    if constraint.n is None:
        return MISSING
    if constraint.n_effective is None or constraint.n_effective > 0.995 * constraint.n:
        return f"{constraint.n:,}"
    return f"{constraint.n:,} (worth {constraint.n_effective:,.0f})"


def value_interval_text(score: Score) -> str:
    """The interval beside an objective's value, such as `90 % interval: 498.1 to 526.5 tok/s`; empty without one."""
    if score.confidence is None:
        return ""
    low = "unbounded" if score.low is None else metric_value(score.metric, score.low)
    high = "unbounded" if score.high is None else metric_value(score.metric, score.high)
    return f"{confidence_text(score.confidence)} interval: {low} to {high}"


def value_text(score: Score, baseline: float | None) -> str:
    """An objective's value and its distance to the baseline: `512.3 tok/s (+34 %)`."""
    shown = metric_value(score.metric, score.value)
    return shown if baseline is None else f"{shown} ({change(score.value, baseline)})"


def failure_text(failure: Failure) -> str:
    """A failure in one line: kind, stage, what happened."""
    phase = "" if failure.phase is None else f" ({failure.phase.value.replace('_', ' ')})"
    return f"{failure.kind.value.replace('_', ' ')}{phase} while {stage_name(failure.stage)}: {failure.detail}"


def trial_seconds(trial: TrialRecord) -> float | None:
    """Seconds that a trial's last attempt took, or None while it is not over."""
    ended = trial.attempts[-1].ended_at if trial.attempts else None
    return None if ended is None else (ended - trial.attempts[-1].started_at).total_seconds()
