"""From a steady state to the metrics that a trial shows, as natural logarithms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.engine_model import Steady
from optimizer.tuning.greybox.facts import ServingFacts

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)_(ttft|tpot|itl|e2e)_ms")
_Z99 = 2.326
_LEAST_MS = 1e-9
_QUEUE_SPREAD = 0.25
"""Standard deviation of a wait over its mean, in a closed loop."""
_RUN_SPREAD = 0.05


def log_metric(steady: Steady, facts: ServingFacts, name: str) -> FloatArray | None:
    """Natural logarithm of a metric in its own unit; None of one that the model does not know."""
    match = _PERCENTILE.fullmatch(name)
    if match is None:
        return log_metrics(steady, facts).get(name)
    percent = float(match[1])
    if not 0.0 < percent < 100.0:
        return None
    return _log_percentile(steady, facts, match[2], NormalDist().inv_cdf(percent / 100.0))


def log_metrics(steady: Steady, facts: ServingFacts) -> Mapping[str, FloatArray]:
    """Natural logarithms of metrics, by the beginnings of their names; of latencies the means, in ms."""
    per_token = steady.decode_s / max(facts.output_tokens_mean - 1.0, 1.0)
    figures = {
        "output_tokens_per_s": steady.requests_per_s * facts.output_tokens_mean,
        "total_tokens_per_s": steady.requests_per_s * (facts.output_tokens_mean + facts.prompt_tokens_mean),
        "requests_per_s": steady.requests_per_s,
        "running_mean": steady.running,
        "mean_ttft_ms": 1e3 * steady.ttft_s,
        "mean_tpot_ms": 1e3 * per_token,
        "mean_itl_ms": 1e3 * per_token,
        "mean_e2e_ms": 1e3 * (steady.ttft_s + steady.decode_s),
    }
    return {name: np.log(np.maximum(figure, _LEAST_MS)) for name, figure in figures.items()}


def _log_percentile(steady: Steady, facts: ServingFacts, latency: str, z: float) -> FloatArray:
    """Logarithm of a percentile of a latency in ms; `z` is the percentile's place on a standard normal."""
    longer = max((facts.output_tokens_p99 - facts.output_tokens_mean) * z / _Z99, 0.0) / facts.output_tokens_mean
    beyond = 0.5 * math.erfc(z / math.sqrt(2.0))
    lost_s = np.minimum(steady.preemptions / beyond, 1.0) * steady.recompute_s
    uneven = np.sqrt(steady.mixed_share * (1.0 - steady.mixed_share))
    step_spread_s = (steady.mixed_step_s - steady.step_s) * uneven
    wait_spread_s = _QUEUE_SPREAD * steady.queue_s + 0.5 * (steady.ttft_s - steady.queue_s)
    if latency == "ttft":
        return _log_ms(steady.ttft_s + z * wait_spread_s)
    gained = max(facts.output_tokens_mean - 1.0, 1.0)
    if latency == "itl":
        largest_s = np.where(steady.mixed_share > beyond, steady.mixed_step_s, steady.step_s)
        return _log_ms(largest_s * (1.0 + z * _RUN_SPREAD))
    if latency == "tpot":
        slower_s = steady.decode_s * (1.0 + z * _RUN_SPREAD) + z * step_spread_s * np.sqrt(steady.decode_steps)
        return _log_ms((slower_s + lost_s) / gained)
    spread_s = np.hypot(steady.decode_s * longer, z * _QUEUE_SPREAD * steady.queue_s)
    return _log_ms(steady.ttft_s + steady.decode_s + spread_s + lost_s)


def _log_ms(seconds: FloatArray) -> FloatArray:
    logarithm: FloatArray = np.log(np.maximum(1e3 * seconds, _LEAST_MS))
    return logarithm
