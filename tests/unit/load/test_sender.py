"""What a sender says of the requests that are due."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from optimizer.load import RequestPlan
from optimizer.load.completion import RequestTrace
from optimizer.load.sender import Sender, Share

PASSED_S = 10.0


class NoClient:
    """Every request ends at once."""

    async def stream(self, request: object, trace: RequestTrace) -> None:
        trace.sent_s = trace.ended_s = time.monotonic()


@pytest.mark.parametrize("sessions", [None, {"turns": "2", "think_time": {"kind": "fixed", "seconds": 0.0}}])
async def test_what_is_due_and_comes_late_is_not_yet_known(
    sessions: Any, make_workload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the last request of a window would otherwise leave before it is there."""
    workload = make_workload(arrivals={"kind": "constant", "rate_per_s": 1000}, sessions=sessions)
    plan = RequestPlan(workload, study_seed=1, content_seed=2, vocab_size=256)
    late = asyncio.Event()
    due: asyncio.Queue[float] = asyncio.Queue()

    async def held(at_s: float) -> None:
        due.put_nowait(at_s)
        await late.wait()
        await asyncio.sleep(0)

    monkeypatch.setattr("optimizer.load.sender._sleep_until", held)
    traces: list[RequestTrace] = []
    ended: asyncio.Queue[RequestTrace] = asyncio.Queue()
    client: Any = NoClient()
    sender = Sender(workload, plan, client, Share(), traces=traces, on_end=ended.put_nowait)
    opens_s = time.monotonic() - PASSED_S
    sender.open_window(opens_s)
    running = asyncio.create_task(sender.run(opens_s))
    first_s = await due.get()
    assert sender.known_until_s == first_s < time.monotonic() - PASSED_S / 2
    assert not traces
    late.set()
    assert (await ended.get()).scheduled_s == first_s
    assert sender.known_until_s > first_s
    assert sender.known_until_s <= time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
