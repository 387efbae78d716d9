"""The API server's end of the line to EngineCore: requests out, tokens and statistics in."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from optimizer.core.errors import AutotuneError
from optimizer.engine.simulated.engine_core import MAX_LINE_BYTES
from optimizer.engine.simulated.kv_budget import KvPlan
from optimizer.engine.simulated.request_times import RequestTimes, StepTiming
from optimizer.engine.simulated.step import SchedulerStats, StepOutput


class Generation:
    """The tokens of one request as they come."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.finished = False
        self._arrived: asyncio.Queue[StepOutput | None] = asyncio.Queue()

    def arrived(self, output: StepOutput | None) -> None:
        """Passes on what a step gave; None says that no more will come because EngineCore died."""
        self._arrived.put_nowait(output)

    async def next(self) -> StepOutput | None:
        """The next tokens, or None when EngineCore died."""
        output = await self._arrived.get()
        self.finished = output is None or output.finished
        return output


class CoreClient:
    """One EngineCore. `dead` is set once its end of the socket is closed, for whatever reason.

    Attributes:
        plan: The KV pool; known once `wait_loaded` gave True, and so are `times`.
        stats: As of the last step; an idle engine keeps the last values, as vLLM's does.
    """

    def __init__(self) -> None:
        self.dead = asyncio.Event()
        self.stats = SchedulerStats()
        self._plan: KvPlan | None = None
        self._times: RequestTimes | None = None
        self._loaded = asyncio.Event()
        self._generations: dict[str, Generation] = {}
        self._resets: list[asyncio.Future[bool]] = []

    @property
    def plan(self) -> KvPlan:
        """The KV pool of the loaded engine."""
        if self._plan is None:
            raise AutotuneError("the KV plan was asked for before EngineCore had loaded")
        return self._plan

    @property
    def times(self) -> RequestTimes:
        """The histograms of the loaded engine."""
        if self._times is None:
            raise AutotuneError("request times were asked for before EngineCore had loaded")
        return self._times

    async def connect(self, channel: socket.socket) -> None:
        """Starts to listen to EngineCore."""
        reader, self._writer = await asyncio.open_connection(sock=channel, limit=MAX_LINE_BYTES)
        self._receiving = asyncio.create_task(self._receive(reader))

    async def wait_loaded(self) -> bool:
        """True once the engine can serve, False when it died first."""
        loaded, dead = asyncio.create_task(self._loaded.wait()), asyncio.create_task(self.dead.wait())
        await asyncio.wait({loaded, dead}, return_when=asyncio.FIRST_COMPLETED)
        loaded.cancel()
        dead.cancel()
        return self._loaded.is_set()

    @contextmanager
    def generate(
        self, request_id: str, prompt: list[int], max_tokens: int, cache_salt: str = ""
    ) -> Iterator[Generation]:
        """Sends a request; leaving the block before its last token aborts it."""
        generation = Generation(request_id)
        self._generations[request_id] = generation
        if self.dead.is_set():
            generation.arrived(None)
        else:
            self.times.arrived(request_id, len(prompt), time.monotonic())
            self._send(
                {"op": "add", "id": request_id, "prompt": prompt, "max_tokens": max_tokens, "cache_salt": cache_salt}
            )
        try:
            yield generation
        finally:
            del self._generations[request_id]
            self.times.gone(request_id)
            if not generation.finished:
                self._send({"op": "abort", "id": request_id})

    async def reset_prefix_cache(self) -> bool:
        """False when a request still held blocks, or when EngineCore is dead."""
        if self.dead.is_set():
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets.append(answer)
        self._send({"op": "reset_prefix_cache"})
        return await answer

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._take(json.loads(line))
        except ConnectionError:
            pass
        self.dead.set()
        for generation in self._generations.values():
            generation.arrived(None)
        for answer in self._resets:
            answer.set_result(False)

    def _take(self, message: dict[str, object]) -> None:
        match message:
            case {"ready": dict(plan)}:
                self._plan = KvPlan(**plan)
                self._times = RequestTimes(self._plan.max_model_len)
                self._loaded.set()
            case {"reset": bool(success)}:
                self._resets.pop(0).set_result(success)
            case {"outputs": list(fields), "stats": dict(stats), "step": step}:
                self.stats = SchedulerStats(**stats)
                outputs = [StepOutput(*one) for one in fields]
                if isinstance(step, list):
                    self.times.step(StepTiming(*step), outputs)
                for output in outputs:
                    if output.request_id in self._generations:
                        self._generations[output.request_id].arrived(output)

    def _send(self, message: dict[str, object]) -> None:
        if not self.dead.is_set():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
