"""Offline: every request at once, and one waits for the last. A batch's throughput, never that of a server in use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.measurement import LoadResult
from optimizer.core.stop_reason import StopReason
from optimizer.load.completion import LoadClient, RequestTrace, open_client
from optimizer.load.progress import LoadProgress, ignore
from optimizer.load.requests import RequestPlan
from optimizer.load.result import to_load_result

_REPORT_EVERY_S = 0.25


async def run_offline(
    endpoint: EngineEndpoint,
    plan: RequestPlan,
    requests: int,
    *,
    limit_s: float,
    on_progress: Callable[[LoadProgress], None] = ignore,
    on_window_open: Callable[[], None] = ignore,
    on_window_close: Callable[[], None] = ignore,
    traces: list[RequestTrace] | None = None,
) -> LoadResult:
    """Sends all requests at once; the window is the time until the last has ended.

    Args:
        endpoint: The live engine.
        plan: The requests, by number. Of conversations the first turn is sent.
        requests: How many, >= 1.
        limit_s: What has not ended by then is given up, and counts as failed.
        on_progress: Told a few times a second; must return at once.
        on_window_open: Called the moment before the first is sent.
        on_window_close: Called the moment the last has ended.
        traces: Takes every request, for whoever watches them.

    Raises:
        InputError: The endpoint's address is no http(s) URL.
    """
    traces = [] if traces is None else traces
    async with open_client(endpoint) as client:
        on_window_open()
        start_s = time.monotonic()
        tasks = [asyncio.create_task(_send(client, plan, number, start_s, traces)) for number in range(requests)]
        try:
            left: set[asyncio.Task[None]] = set(tasks)
            while left and (elapsed_s := time.monotonic() - start_s) < limit_s:
                done, left = await asyncio.wait(left, timeout=min(_REPORT_EVERY_S, limit_s - elapsed_s))
                for task in done:
                    task.result()
                on_progress(LoadProgress(requests - len(left), elapsed_s, limit_s))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        on_window_close()
    end_s = max((trace.ended_s for trace in traces if trace.ended_s is not None), default=time.monotonic())
    # The last token comes at the very end of the window, which leaves its own end out.
    stopped_by = StopReason.BUDGET if left else StopReason.WINDOW
    return to_load_result(traces, start_s, end_s + 1e-6, stopped_by=stopped_by)


async def _send(
    client: LoadClient, plan: RequestPlan, number: int, scheduled_s: float, traces: list[RequestTrace]
) -> None:
    request = plan.request(number)
    trace = RequestTrace.of(request, scheduled_s, number)
    traces.append(trace)
    if request.refused is not None:
        trace.error, trace.ended_s = request.refused, time.monotonic()
        return
    await client.stream(request, trace)
