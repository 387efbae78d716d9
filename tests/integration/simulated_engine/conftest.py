"""A simulated engine as a real process, and what a test asks of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

LIMIT_S = 60.0
"""For anything that is waited for; a loaded machine takes its time."""
KEY = "key-of-the-test"


@dataclass
class Streamed:
    """One streamed answer."""

    status: int
    chunks: list[dict[str, Any]]
    done: bool
    lasted_s: float

    @property
    def tokens(self) -> int:
        """Chunks that carry tokens."""
        return sum(1 for chunk in self.chunks if chunk.get("choices"))

    @property
    def finish_reason(self) -> str | None:
        """Of the last chunk with tokens."""
        choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        return choices[-1]["finish_reason"] if choices else None


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; an orphan that nobody reaps does not."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@dataclass
class Server:
    """A started server."""

    process: asyncio.subprocess.Process
    url: str
    key: str
    log_file: Path
    http: aiohttp.ClientSession

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def core(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    async def exit_status(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        """Polls: nothing outside the process tells of these things."""
        async with asyncio.timeout(LIMIT_S):
            while not await true():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_ready(self) -> None:
        async def ready() -> bool:
            assert self.process.returncode is None, self.log
            return await self.health() == 200

        await self.until(ready)

    async def until_health(self, status: int) -> None:
        async def answers() -> bool:
            return await self.health() == status

        await self.until(answers)

    async def until_unhealthy(self) -> None:
        """503 while a server outlives its engine, which is not for long; refused from then on."""

        async def answers() -> bool:
            return await self.health() in (503, None)

        await self.until(answers)

    async def until_generating(self) -> None:
        async def generating() -> bool:
            return (await self.metrics())["generation_tokens_total"] > 0

        await self.until(generating)

    async def until_logged(self, text: str) -> None:
        async def logged() -> bool:
            return text in self.log

        await self.until(logged)

    async def until_gone(self, process: psutil.Process) -> None:
        async def gone() -> bool:
            return not alive(process)

        await self.until(gone)

    async def health(self) -> int | None:
        """Status, or None while connections are refused."""
        try:
            async with self.http.get(f"{self.url}/health") as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return None

    async def metrics(self) -> dict[str, float]:
        """Name without `vllm:`, followed by the finish reason where there is one, to value."""
        async with self.http.get(f"{self.url}/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        return {
            sample.name.removeprefix("vllm:") + sample.labels.get("finished_reason", ""): sample.value
            for family in families
            for sample in family.samples
        }

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        async with self.http.post(f"{self.url}{path}", json=body) as answer:
            return answer.status, await answer.json()

    async def complete(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        status, body = await self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens})
        assert status == 200, body
        return dict(body)

    async def stream(self, max_tokens: int, **more: object) -> Streamed:
        body = {"prompt": [1, 2, 3], "max_tokens": max_tokens, "stream": True} | more
        streamed = Streamed(0, [], False, 0.0)
        start_s = time.monotonic()
        async with self.http.post(f"{self.url}/v1/completions", json=body) as answer:
            streamed.status = answer.status
            async for line in answer.content:
                if line == b"data: [DONE]\n":
                    streamed.done = True
                elif line.startswith(b"data: "):
                    streamed.chunks.append(json.loads(line.removeprefix(b"data: ")))
        streamed.lasted_s = time.monotonic() - start_s
        return streamed


Start = Callable[..., AbstractAsyncContextManager[Server]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_all(leader: int) -> None:
    """Ends what a failed test left; the children are looked up first, since they outlive the leader."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(leader)
        for one in (*process.children(), process):
            one.kill()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    @asynccontextmanager
    async def starting(
        *flags: str, faults: object = (), speed: float = 20.0, ready: bool = True, port: int | None = None, **env: str
    ) -> AsyncGenerator[Server]:
        port = port or free_port()
        log_file = tmp_path / f"engine-{port}.log"
        script = {"AUTOTUNE_SIM_FAULTS": json.dumps(faults), "AUTOTUNE_SIM_SPEED": str(speed)}
        with log_file.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "optimizer.engine.simulated", "--port", str(port), *flags),
                stdout=log,
                stderr=log,
                env={**os.environ, "VLLM_API_KEY": KEY, **script, **env},
                start_new_session=True,
            )
        try:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:
                server = Server(process, f"http://127.0.0.1:{port}", KEY, log_file, http)
                if ready:
                    await server.until_ready()
                yield server
        finally:
            kill_all(process.pid)
            await process.wait()

    return starting
