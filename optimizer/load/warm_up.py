"""Before the window: the engine meets the workload's shapes and shared prefixes, and proves that it can answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.completion import RequestTrace, open_session, stream_completion
from optimizer.load.failure import LoadFailed
from optimizer.load.requests import RequestPlan
from optimizer.load.workload import Workload

EVIDENCE_LINES = 5


async def warm_up(endpoint: EngineEndpoint, workload: Workload, plan: RequestPlan) -> int:
    """Sends each shared prefix once, then further warm-up requests, `in_flight` at a time.

    Nothing is sent after `warmup.max_s`; what has not ended by then is given up.

    Returns:
        How many requests succeeded; at least 1.

    Raises:
        LoadFailed: None succeeded.
    """
    traces: list[RequestTrace] = []
    total = max(workload.warmup.requests, plan.shared_prefixes)
    started = time.monotonic()
    timed_out = False
    async with open_session() as session:
        try:
            async with asyncio.timeout(workload.warmup.max_s):
                for numbers in (range(plan.shared_prefixes), range(plan.shared_prefixes, total)):
                    await _send_all(session, endpoint, plan, numbers, workload.arrivals.in_flight, traces)
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


async def _send_all(
    session: aiohttp.ClientSession,
    endpoint: EngineEndpoint,
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
            trace = RequestTrace(time.monotonic(), len(request.prompt), request.output_tokens)
            traces.append(trace)
            await stream_completion(session, endpoint, request, trace)

    async with asyncio.TaskGroup() as senders:
        for _ in range(in_flight):
            senders.create_task(sender())


def failure_evidence(traces: Iterable[RequestTrace]) -> tuple[str, ...]:
    """What failed requests reported and how often, the most frequent first."""
    counts = Counter(trace.error for trace in traces if trace.error is not None)
    return tuple(f"{count} x {error}" for error, count in counts.most_common(EVIDENCE_LINES))
