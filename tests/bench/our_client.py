"""The client as a process of its own, so that its CPU time can be told from the benchmark's. `clients.py` starts it.

    python tests/bench/our_client.py '{"url": ..., "requests": 400, "in_flight": 200, ...}'

Prints a JSON object: times of each request, and the CPU seconds of the load phase alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.completion import LoadClient, RequestTrace, open_client
from optimizer.load.planned import PlannedRequest


async def closed_loop(client: LoadClient, requests: list[PlannedRequest], in_flight: int) -> list[RequestTrace]:
    traces: list[RequestTrace] = []
    waiting = iter(requests)

    async def slot() -> None:
        for request in waiting:
            traces.append(RequestTrace.of(request, time.monotonic()))
            await client.stream(request, traces[-1])

    async with asyncio.TaskGroup() as slots:
        for _ in range(in_flight):
            slots.create_task(slot())
    return traces


async def open_loop(client: LoadClient, requests: list[PlannedRequest], per_s: float) -> list[RequestTrace]:
    """Poisson arrivals on a schedule that is fixed before the first one leaves."""
    gaps_s = np.random.default_rng(1).exponential(1.0 / per_s, len(requests))
    due_s = (time.monotonic() + 0.1 + np.cumsum(gaps_s)).tolist()
    traces = [RequestTrace.of(request, at_s) for request, at_s in zip(requests, due_s, strict=True)]
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as under_way:
        for request, trace in zip(requests, traces, strict=True):
            # Also when one is due at once: answers get their turn between two arrivals.
            await asyncio.sleep(max(0.0, trace.scheduled_s - loop.time()))
            under_way.create_task(client.stream(request, trace))
    return traces


def waited_for_core_s() -> float:
    """How long this process has been ready to run and was not let run: what others do to the measurement."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


async def run(ask: dict[str, Any]) -> dict[str, Any]:
    prompt = np.random.default_rng(0).integers(1, 500, (ask["requests"], ask["prompt_tokens"])).tolist()
    requests = [PlannedRequest(tokens, ask["output_tokens"]) for tokens in prompt]
    warm_ups = [requests[0]] * ask.get("warm_ups", 0)
    endpoint = EngineEndpoint(ask["url"], "scripted")
    async with open_client(endpoint) as client:
        await closed_loop(client, warm_ups, len(warm_ups))
        gc.collect()
        cpu_s, waited_s = time.process_time(), waited_for_core_s()
        if "per_s" in ask:
            traces = await open_loop(client, requests, ask["per_s"])
        else:
            traces = await closed_loop(client, requests, ask["in_flight"])
        cpu_s, waited_s = time.process_time() - cpu_s, waited_for_core_s() - waited_s
    good = [trace for trace in traces if trace.error is None and trace.sent_s is not None]
    first_s = np.array([trace.arrivals[0][0] - trace.sent_s for trace in good])
    whole_s = np.array([trace.arrivals[-1][0] - trace.sent_s for trace in good])
    return {
        "cpu_s": cpu_s,
        "waited_s": waited_s,
        "tokens": sum(trace.output_tokens for trace in traces),
        "failed": len(traces) - len(good),
        "ttft_s": first_s.tolist(),
        "e2e_s": whole_s.tolist(),
        "output_tokens": [trace.output_tokens for trace in good],
        "itl_s": [gap for trace in good for gap in trace.gaps_s],
        "late_s": [trace.sent_s - trace.scheduled_s for trace in traces if trace.sent_s is not None],
        "wall_s": max(trace.ended_s or 0.0 for trace in traces) - min(trace.sent_s or 0.0 for trace in traces),
    }


def main() -> None:
    ask = json.loads(sys.argv[1])
    if ask.get("core") is not None:
        os.sched_setaffinity(0, {ask["core"]})
    json.dump(asyncio.run(run(ask)), sys.stdout)


if __name__ == "__main__":
    main()
