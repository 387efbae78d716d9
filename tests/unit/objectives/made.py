"""Load runs that are made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optimizer.core.measurement import EngineMetrics, HostUsage, LoadResult, Measurement


def load_of(e2e_ms: Sequence[float | None], *, tokens: int = 5, **changes: Any) -> LoadResult:
    """Requests 10 ms apart with these latencies, None for a failed one; the first token comes at a fifth of each."""
    n = len(e2e_ms)
    latency_s = np.array([math.nan if x is None else x / 1000.0 for x in e2e_ms], dtype=np.float64)
    scheduled_s = np.arange(n) / 100.0
    succeeded = sum(x is not None for x in e2e_ms)
    facts: dict[str, Any] = {
        "window_start_s": 0.0,
        "window_s": 10.0,
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "first_token_s": scheduled_s + latency_s / 5.0,
        "last_token_s": scheduled_s + latency_s,
        "prompt_tokens": np.full(n, 8),
        "output_tokens": np.full(n, tokens),
        "errors": tuple("HTTP 503" if x is None else None for x in e2e_ms),
        "itl_s": np.full(succeeded * (tokens - 1), 0.01),
        "window_output_tokens": 100,
        "window_requests": succeeded,
    }
    return LoadResult(**(facts | changes))


def measured(e2e_ms: Sequence[float | None], *, tokens: int = 5, **changes: Any) -> Measurement:
    """The same with an engine and a host that say nothing."""
    return Measurement(load_of(e2e_ms, tokens=tokens, **changes), EngineMetrics(), HostUsage())
