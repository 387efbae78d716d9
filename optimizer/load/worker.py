"""A load process: sends one share of a run's load and reports what comes of it. `optimizer.load.shards` starts it.

It is told on stdin, a line of JSON each: what to send, when to start, when the window opens, when to stop. It reports
on stdout (`optimizer.load.reports`). All times are on the clock CLOCK_MONOTONIC, which the processes of a host share.
It ends when its stdin does, and when its parent dies.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import pickle
import signal
import sys
import time
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn

from optimizer.core.endpoint import EngineEndpoint
from optimizer.host.tasks import unless
from optimizer.load.completion import RequestTrace, open_client
from optimizer.load.reports import ReportWriter
from optimizer.load.requests import RequestPlan
from optimizer.load.self_watch import SelfWatch
from optimizer.load.sender import Sender, Share
from optimizer.load.workload import Workload

REPORT_EVERY_S = 0.25
_PR_SET_PDEATHSIG = 1
_LONGEST_LINE_BYTES = 1 << 28


def order_line(endpoint: EngineEndpoint, workload: Workload, plan: RequestPlan, share: Share) -> bytes:
    """The first line for a worker. It holds the API key, so it goes through a pipe and nowhere else."""
    packed = base64.b64encode(pickle.dumps((endpoint, workload, plan, share))).decode()
    return json.dumps({"load": packed}).encode() + b"\n"


async def work(orders: asyncio.StreamReader, reports: asyncio.StreamWriter) -> None:
    """Follows the orders until told to stop, or until they end."""
    first = await _next(orders)
    if first is None:
        return
    endpoint, workload, plan, share = pickle.loads(base64.b64decode(first["load"]))  # noqa: S301 (from our parent)
    traces: list[RequestTrace] = []
    watch = SelfWatch()
    writer = ReportWriter(traces, watch)
    async with open_client(endpoint) as client:
        sender = Sender(workload, plan, client, share, traces=traces, on_end=lambda trace: None)
        reports.write(b'{"ready":true}\n')
        start = await _next(orders)
        if start is None:
            return
        beside = (sender.run(start["start_at_s"]), watch.run(), _report(writer, reports, sender))
        await unless(_all(beside), _follow(orders, sender))
    reports.write(writer.report(time.monotonic(), exhausted=True, last=True))
    await reports.drain()


async def _all(endless: Iterable[Coroutine[Any, Any, NoReturn]]) -> NoReturn:
    """Runs what never ends; the first to fail ends the others."""
    async with asyncio.TaskGroup() as tasks:
        for work_of_one in endless:
            tasks.create_task(work_of_one)
    raise AssertionError("they never end")


async def _report(writer: ReportWriter, reports: asyncio.StreamWriter, sender: Sender) -> NoReturn:
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        reports.write(writer.report(sender.known_until_s, exhausted=sender.exhausted, last=False))
        await reports.drain()


async def _follow(orders: asyncio.StreamReader, sender: Sender) -> None:
    """Opens the window when told to; returns when the run is over."""
    while (order := await _next(orders)) is not None and "open_at_s" in order:
        sender.open_window(order["open_at_s"])


async def _next(orders: asyncio.StreamReader) -> dict[str, Any] | None:
    line = await orders.readline()
    if not line.endswith(b"\n"):
        return None
    order: dict[str, Any] = json.loads(line)
    return order


async def _main() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=_LONGEST_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    reports = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        await work(orders, reports)
    except (BrokenPipeError, ConnectionResetError):
        return  # nobody listens any more


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    asyncio.run(_main())
