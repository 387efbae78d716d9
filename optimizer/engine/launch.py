"""Launch one engine, wait until it is ready and provably ours, and stop it without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.vllm.argv import server_arguments
from optimizer.engine.vllm.environment import engine_environment
from optimizer.engine.vllm.failures import classify
from optimizer.engine.vllm.log_lines import last_lines
from optimizer.engine.vllm.startup_log import StartupFacts, startup_facts
from optimizer.host.ports import LOOPBACK, free_port
from optimizer.host.supervisor import GUARD_SCRIPT, LaunchSpec, StopReport, SupervisedProcess, Supervisor

_PROBE_EVERY_S = 0.2
_PROBE_LIMIT_S = 5.0
_STOP_GRACE_S = 5.0
_LOG_TAIL_BYTES = 256_000

T = TypeVar("T")


class EngineFailed(Exception):
    """Internal to the trial: carries the `Failure` from where it was seen to the trial runner."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """What is started: the words before the server's arguments, and what the environment needs besides.

    Attributes:
        head: Program words, such as `python -m vllm.entrypoints.openai.api_server`; empty when a warm spare forks it.
        display_head: The same as a person would type it, for the record.
        cpus: Cores the engine is kept on; empty leaves all.
        cpu_threads: OpenMP threads of a CPU engine; None for a GPU engine.
        vocab_size: Token ids in prompts must lie below it.
    """

    head: Sequence[str]
    display_head: Sequence[str]
    cpus: Sequence[int] = ()
    cpu_threads: int | None = None
    vocab_size: int = 256


class EngineProcess:
    """A launched engine."""

    def __init__(self, process: SupervisedProcess, endpoint: EngineEndpoint, argv: tuple[str, ...], log: Path) -> None:
        self._process = process
        self.endpoint = endpoint
        self.argv = argv
        self.log = log

    @property
    def pid(self) -> int:
        """The API server's process id."""
        return self._process.identity.pid

    async def wait_ready(self, *, limit_s: float) -> StartupFacts:
        """Race the engine's end against its `/health`, then make sure that the server that answers is this one.

        Raises:
            EngineFailed: It ended, was not ready in time, or another server answers on its port.
        """
        try:
            async with asyncio.timeout(limit_s), aiohttp.ClientSession(headers=self.endpoint.headers) as session:
                await self.unless_it_ends(self._answering(session), Stage.LAUNCHING)
                await self.unless_it_ends(self._prove_ours(session), Stage.LAUNCHING)
        except TimeoutError:
            raise EngineFailed(
                Failure(
                    kind=FailureKind.STARTUP_TIMEOUT,
                    stage=Stage.LAUNCHING,
                    blame=Blame.CONFIG,
                    detail=f"the engine was not ready within {limit_s:.0f} s",
                    evidence=last_lines(self.log_tail()),
                )
            ) from None
        return startup_facts(self.log_tail())

    async def unless_it_ends(self, work: Coroutine[Any, Any, T], stage: Stage) -> T:
        """Run `work`, but not beyond the engine's life: its end, which during a trial is a failure, cancels the work.

        Raises:
            EngineFailed: The engine ended before the work did.
        """
        task = asyncio.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._process.exited}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._process.exited.done():
                raise EngineFailed(classify(self.log_tail(), stage=stage, exit_code=self._process.exited.result()))
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def ends_within(self, limit_s: float) -> bool:
        """Whether the engine has ended or does so within the limit: a load that broke off may have been faster."""
        await asyncio.wait({self._process.exited}, timeout=limit_s)
        return self._process.exited.done()

    async def is_healthy(self) -> bool:
        """Whether `/health` says so now; with a dead EngineCore vLLM answers 503, seconds before its server ends."""
        try:
            async with aiohttp.ClientSession(headers=self.endpoint.headers) as session:
                return await self._health(session) == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def stop(self) -> StopReport:
        """End the engine with all its processes. Not interruptible: a cancelled caller still leaves nothing behind."""
        return await self._process.stop(grace_s=_STOP_GRACE_S)

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False when the engine would not (blocks are held, or it has no such endpoint)."""
        try:
            async with (
                aiohttp.ClientSession(headers=self.endpoint.headers) as session,
                session.post(f"{self.endpoint.base_url}/reset_prefix_cache") as answer,
            ):
                # Some releases answer with an empty body, others with {"success": bool}.
                body = await answer.text()
                return answer.status == 200 and (not body.strip() or bool(json.loads(body)["success"]))
        except (aiohttp.ClientError, ValueError, KeyError, TypeError):
            return False

    def log_tail(self) -> str:
        """The last 256 kB of the engine's log; bytes that are no UTF-8 are replaced."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")

    async def _answering(self, session: aiohttp.ClientSession) -> None:
        while True:
            # Refused until the engine is up: vLLM binds its port at once and listens last.
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                if await self._health(session) == 200:
                    return
            await asyncio.sleep(_PROBE_EVERY_S)

    async def _health(self, session: aiohttp.ClientSession) -> int:
        limit = aiohttp.ClientTimeout(total=_PROBE_LIMIT_S)
        async with session.get(f"{self.endpoint.base_url}/health", timeout=limit) as answer:
            return answer.status

    async def _prove_ours(self, session: aiohttp.ClientSession) -> None:
        try:
            async with session.get(f"{self.endpoint.base_url}/v1/models") as answer:
                served = [model["id"] for model in (await answer.json())["data"]]
        except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            served = [f"no model list: {error}"]
        if served != [self.endpoint.model]:
            raise EngineFailed(
                Failure(
                    kind=FailureKind.PORT_TAKEN,
                    stage=Stage.LAUNCHING,
                    blame=Blame.HOST,
                    detail=f"the server on {self.endpoint.base_url} is not the one we launched",
                    evidence=(f"it serves {served}, ours would serve {self.endpoint.model}",),
                    retryable=True,
                )
            )


class EngineLauncher:
    """Launches engines of one program, one at a time, under one guard."""

    def __init__(
        self, supervisor: Supervisor, program: EngineProgram, *, port_range: tuple[int, int] | None = None
    ) -> None:
        self._supervisor = supervisor
        self._program = program
        self._port_range = port_range

    async def launch(self, config: EngineConfig, *, log: Path, marker: str) -> EngineProcess:
        """Start an engine on a fresh port with a fresh key and a fresh served model name.

        Args:
            config: What to launch.
            log: The engine's own output goes here.
            marker: Study, trial and attempt; put into the environment of every process of the engine.

        Raises:
            HostError: No free port, or the program cannot be started.
        """
        program = self._program
        api_key = secrets.token_urlsafe(24)
        nonce = f"autotune-{secrets.token_hex(8)}"
        port = free_port(self._port_range)
        arguments = server_arguments(config, port=port, served_model_name=nonce)
        env = engine_environment(config.env, api_key=api_key, cpu_threads=program.cpu_threads, marker=marker)
        process = await self._supervisor.launch(
            LaunchSpec(argv=[*program.head, *arguments], env=env, log=log, cpus=program.cpus)
        )
        endpoint = EngineEndpoint(
            base_url=f"http://{LOOPBACK}:{port}", model=nonce, api_key=api_key, vocab_size=program.vocab_size
        )
        return EngineProcess(process, endpoint, (*program.display_head, *arguments), log)

    async def close(self) -> None:
        """End the guard and whatever engine is left."""
        await self._supervisor.close()


def warm_spare_command(engine_python: str) -> list[str]:
    """The guard that has imported vLLM and forks each engine from itself."""
    script = Path(__file__).parent / "vllm" / "inside" / "warm_spare.py"
    return [engine_python, str(script), str(GUARD_SCRIPT)]


def warm_spare_environment(env: Mapping[str, str], cpu_threads: int | None) -> dict[str, str]:
    """Environment of the warm spare itself: what an engine gets, less the secrets of one launch."""
    full = engine_environment(env, api_key="", cpu_threads=cpu_threads, marker="spare")
    del full["VLLM_API_KEY"]
    return full
