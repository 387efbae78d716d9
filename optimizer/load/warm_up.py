"""Before the window: the engine meets the workload's shapes and shared prefixes, and proves that it can answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.completion import LoadClient, RequestTrace, open_client
from optimizer.load.failure import LoadFailed
from optimizer.load.requests import RequestPlan
from optimizer.load.workload import Workload

EVIDENCE_LINES = 5
UNCAPPED_IN_FLIGHT = 32
"""At a time in an open loop without a cap, of which nobody knows how many it will have in flight."""


async def warm_up(
    endpoint: EngineEndpoint, workload: Workload, plan: RequestPlan, *, traces: list[RequestTrace] | None = None
) -> int:
    """Sends each shared prefix once, then further warm-up requests, as many at a time as the load will have.

    Nothing is sent after `warmup.max_s`; what has not ended by then is given up.

    Args:
        endpoint: The live engine.
        workload: Slots in flight, number of requests and their time.
        plan: The requests, drawn by number.
        traces: Takes every request as it is scheduled, for whoever watches them while the warm-up runs.

    Returns:
        How many requests succeeded; at least 1.

    Raises:
        LoadFailed: None succeeded.
    """
    traces = [] if traces is None else traces
    total = max(workload.warmup.requests, plan.shared_prefixes)
    started = time.monotonic()
    timed_out = False
    async with open_client(endpoint) as client:
        try:
            async with asyncio.timeout(workload.warmup.max_s):
                for numbers in (range(plan.shared_prefixes), range(plan.shared_prefixes, total)):
                    await _send_all(client, plan, numbers, _in_flight(workload), traces)
        except TimeoutError:
            timed_out = True
    succeeded = sum(trace.error is None for trace in traces)
    if succeeded == 0:
        how = "within the time allowed" if timed_out else "at all"
        raise LoadFailed(
            f"none of {len(traces)} warm-up requests succeeded {how} ({time.monotonic() - started:.1f} s)",
            failure_evidence(traces),
        )
    return succeeded


def _in_flight(workload: Workload) -> int:
    most = workload.arrivals.most_in_flight
    return UNCAPPED_IN_FLIGHT if most is None else most


async def _send_all(
    client: LoadClient,
    plan: RequestPlan,
    numbers: Iterable[int],
    in_flight: int,
    traces: list[RequestTrace],
) -> None:
    """Sends the warm-up requests `numbers`, at most `in_flight` at once, and waits for all of them."""
    waiting = iter(numbers)

    async def sender() -> None:
        for number in waiting:
            request = plan.warm_up_request(number)
            trace = RequestTrace.of(request, time.monotonic(), number)
            traces.append(trace)
            if request.refused is None:
                await client.stream(request, trace)
            else:
                trace.error, trace.ended_s = request.refused, time.monotonic()

    async with asyncio.TaskGroup() as senders:
        for _ in range(in_flight):
            senders.create_task(sender())


def failure_evidence(traces: Iterable[RequestTrace]) -> tuple[str, ...]:
    """What failed requests reported and how often, the most frequent first."""
    counts = Counter(trace.error for trace in traces if trace.error is not None)
    return tuple(f"{count} x {error}" for error, count in counts.most_common(EVIDENCE_LINES))
