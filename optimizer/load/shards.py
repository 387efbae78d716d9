"""Several processes that send the load of one run, where one cannot keep up."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.completion import RequestTrace
from optimizer.load.failure import ClientSpoiled
from optimizer.load.reports import ReportReader
from optimizer.load.requests import RequestPlan
from optimizer.load.self_watch import SelfWatch
from optimizer.load.sender import Share
from optimizer.load.worker import order_line
from optimizer.load.workload import Workload

WORKER = "optimizer.load.worker"
START_LIMIT_S = 120.0
"""A worker imports NumPy and reads the workload's file; more than this is no start."""
STOP_LIMIT_S = 10.0
LEAD_S = 0.5
"""A start or an opening is announced so long before, so that every worker knows of it in time."""
_LONGEST_LINE_BYTES = 1 << 28


class _Worker:
    """One load process, from its parent's side."""

    def __init__(self, index: int, process: asyncio.subprocess.Process, reader: ReportReader) -> None:
        self.index = index
        self.process = process
        self.reader = reader
        self._last_words: deque[str] = deque(maxlen=5)
        self._listening = asyncio.create_task(self._listen())

    def tell(self, order: dict[str, Any] | bytes) -> None:
        """Sends an order; one that has gone is noticed by `follow`."""
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(order if isinstance(order, bytes) else json.dumps(order).encode() + b"\n")

    async def ready(self) -> None:
        """Waits until it can send.

        Raises:
            ClientSpoiled: It has gone.
        """
        if await self._line() is None:
            raise await self.gone()

    async def follow(self) -> None:
        """Takes its reports, until the last.

        Raises:
            ClientSpoiled: It ended without one.
        """
        while (line := await self._line()) is not None:
            self.reader.read(line)
            if line["last"]:
                return
        raise await self.gone()

    async def gone(self) -> ClientSpoiled:
        """The error that tells how it ended."""
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                status = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            status = await self.process.wait()
        await asyncio.gather(self._listening)
        return ClientSpoiled(
            f"load process {self.index + 1} ended by itself (exit status {status})", tuple(self._last_words)
        )

    async def end(self) -> None:
        """Sees it gone, now."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await asyncio.gather(self._listening)

    async def _line(self) -> dict[str, Any] | None:
        stream = self.process.stdout
        line = b"" if stream is None else await stream.readline()
        if not line.endswith(b"\n"):
            return None
        told: dict[str, Any] = json.loads(line)
        return told

    async def _listen(self) -> None:
        while self.process.stderr is not None and (line := await self.process.stderr.readline()):
            self._last_words.append(line.decode(errors="replace").rstrip())


class ShardedCrew:
    """Several processes, each with its share; this one merges what they report and sends nothing."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self._workers = workers
        self._watch = SelfWatch()
        self._watching = asyncio.create_task(self._watch.run())
        self._following: list[asyncio.Task[None]] = []

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever become due."""
        return all(worker.reader.exhausted for worker in self._workers)

    @property
    def known_until_s(self) -> float:
        """What happened before is known of every worker."""
        return min(worker.reader.known_until_s for worker in self._workers)

    @property
    def senders(self) -> Sequence[SelfWatch]:
        """The workers."""
        return [worker.reader.watch for worker in self._workers]

    @property
    def others(self) -> Sequence[SelfWatch]:
        """This process."""
        return (self._watch,)

    async def start(self) -> float:
        """Has all of them begin at one time.

        Raises:
            ClientSpoiled: One does not start.
        """
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await asyncio.gather(*(worker.ready() for worker in self._workers))
        except TimeoutError:
            raise ClientSpoiled(f"a load process did not start within {START_LIMIT_S:g} s") from None
        start_s = time.monotonic() + LEAD_S
        self._tell({"start_at_s": start_s})
        self._following = [asyncio.create_task(worker.follow()) for worker in self._workers]
        return start_s

    def open_window(self) -> float:
        """Has all of them go over to the window's requests at one time."""
        opens_s = time.monotonic() + LEAD_S
        self._tell({"open_at_s": opens_s})
        return opens_s

    async def alarm(self) -> NoReturn:
        """Raises when a worker ends by itself.

        Raises:
            ClientSpoiled: It did.
        """
        done, _ = await asyncio.wait(self._following, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise ClientSpoiled("a load process ended before it was told to")

    async def stop(self) -> None:
        """Has the workers give up what is under way, and takes their last reports.

        Raises:
            ClientSpoiled: One does not give it.
        """
        self._tell({"stop": True})
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await asyncio.gather(*self._following)
        except TimeoutError:
            raise ClientSpoiled(f"a load process gave no last report within {STOP_LIMIT_S:g} s") from None

    async def end(self) -> None:
        """Sees every worker gone."""
        for task in (self._watching, *self._following):
            task.cancel()
        await asyncio.gather(self._watching, *self._following, return_exceptions=True)

    def _tell(self, order: dict[str, Any]) -> None:
        for worker in self._workers:
            worker.tell(order)


@asynccontextmanager
async def sharded_crew(
    endpoint: EngineEndpoint,
    workload: Workload,
    plan: RequestPlan,
    processes: int,
    *,
    traces: list[RequestTrace],
    on_end: Callable[[RequestTrace], None],
) -> AsyncIterator[ShardedCrew]:
    """A crew of `processes` load processes, none of which lives when the block is left.

    With a cap on requests in flight each has its part of it, and there are no more processes than slots.
    """
    most = workload.arrivals.most_in_flight
    processes = processes if most is None else min(processes, most)
    workers: list[_Worker] = []
    try:
        for index in range(processes):
            workers.append(_Worker(index, await _spawn(), ReportReader(traces, on_end)))
            workers[-1].tell(order_line(endpoint, workload, plan, Share(index, processes)))
        crew = ShardedCrew(workers)
        try:
            yield crew
        finally:
            await crew.end()
    finally:
        await asyncio.gather(*(worker.end() for worker in workers))


async def _spawn() -> asyncio.subprocess.Process:
    """A worker, with this package and not what lies in the working folder; the terminal's Ctrl-C is not its."""
    package = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", WORKER),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
        limit=_LONGEST_LINE_BYTES,
    )
