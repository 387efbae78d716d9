"""Measurements put together by the figures that a test cares for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from optimizer.core.measurement import EngineMetrics, GpuUsage, HostUsage, LoadResult, Measurement, RoleUse, ThreadUse

TITLES = {"api_server": "VLLM::APIServer_0", "engine_core": "VLLM::EngineCore", "worker": "VLLM::Worker_TP0"}


def role(name: str, cores: float, *, total: float | None = None, waiting: float | None = 0.0) -> RoleUse:
    """One process whose main thread used `cores`."""
    thread = ThreadUse(TITLES.get(name, name), 7, "main", cores, waiting)
    return RoleUse(name, 1, cores if total is None else total, thread)


def load(requests: int = 100, *, window_s: float = 10.0, itl_s: float = 0.02, **changes: Any) -> LoadResult:
    """Requests that all went well."""
    at = np.linspace(0.0, window_s, requests, endpoint=False)
    result = LoadResult(
        window_start_s=0.0,
        window_s=window_s,
        scheduled_s=at,
        sent_s=at,
        first_token_s=at + 0.1,
        last_token_s=at + 1.0,
        prompt_tokens=np.full(requests, 100),
        output_tokens=np.full(requests, 50),
        errors=(None,) * requests,
        itl_s=np.full(requests * 49, itl_s),
        window_output_tokens=requests * 50,
        window_requests=requests,
    )
    return replace(result, **changes)


def measured(
    *roles: RoleUse,
    engine: EngineMetrics | None = None,
    gpu: GpuUsage | None = None,
    host: HostUsage | None = None,
    of: LoadResult | None = None,
) -> Measurement:
    """One measurement; what is not given was not observed."""
    usage = replace(host or HostUsage(), roles=roles)
    return Measurement(of or load(), engine or EngineMetrics(), usage, gpu or GpuUsage())
