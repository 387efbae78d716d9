"""Launch one engine, wait until it is ready and provably ours, and stop it without a trace."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import aiohttp

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.engine_config import EngineConfig
from optimizer.core.failure import Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.engine_log import read_log
from optimizer.engine.memory_kill import MemoryHistory, MemoryWatch
from optimizer.engine.readiness import (
    PROOF_LIMIT_S,
    START_STALL_S,
    health,
    prove,
    start_timeout,
    until_all_are_up,
    until_healthy,
    watch_start,
    whose_server,
)
from optimizer.engine.vllm.argv import SERVER_MODULE, api_servers, server_arguments, server_module
from optimizer.engine.vllm.environment import engine_environment
from optimizer.engine.vllm.failures import classify
from optimizer.engine.vllm.startup_log import StartupFacts, startup_facts
from optimizer.host.guard import Seen
from optimizer.host.ports import LOOPBACK, free_port
from optimizer.host.supervisor import GUARD_SCRIPT, LaunchSpec, StopReport, SupervisedProcess, Supervisor
from optimizer.host.tasks import unless

_STOP_GRACE_S = 5.0
_END_SEEN_S = 6.0
"""vLLM's API server looks every 5 s whether its EngineCore lives, and leaves when it does not."""

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
        head: Program words, such as `python -m vllm.entrypoints.openai.api_server`, whose module is another one where
            a setting asks for several API servers; empty when a warm spare forks it.
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
    """A launched engine.

    Args:
        process: Its leader.
        endpoint: Where it serves.
        argv: How it was started.
        log: Its output.
        memory: The host's before the launch; None where nobody looked.
        servers: API servers that it is to have.
    """

    def __init__(
        self,
        process: SupervisedProcess,
        endpoint: EngineEndpoint,
        argv: tuple[str, ...],
        log: Path,
        memory: MemoryWatch | None = None,
        *,
        servers: int = 1,
    ) -> None:
        self._process = process
        self._servers = servers
        self._memory = memory
        self.endpoint = endpoint
        self.argv = argv
        self.log = log

    @property
    def pid(self) -> int:
        """The API server's process id."""
        return self._process.identity.pid

    async def wait_ready(self, *, limit_s: float, stall_s: float = START_STALL_S) -> StartupFacts:
        """Race the engine's end against its `/health`, then let it prove that it is ours and answers.

        Args:
            limit_s: Until `/health` says 200; the first completion has a limit of its own.
            stall_s: How long the start may neither log anything nor compute.

        Raises:
            EngineFailed: It ended, got stuck, was not ready in time, does not answer, or another server has its port.
        """
        ready = unless(self._get_stuck(stall_s), self._become_ready(limit_s))
        await self.unless_it_ends(ready, Stage.LAUNCHING)
        self._process.note_shared_memory()
        return startup_facts(self.log_text())

    async def _get_stuck(self, stall_s: float) -> NoReturn:
        raise EngineFailed(await watch_start(self.pid, self.log, stall_s=stall_s))

    async def _become_ready(self, limit_s: float) -> None:
        async with aiohttp.ClientSession(headers=self.endpoint.headers) as session:
            try:
                async with asyncio.timeout(limit_s):
                    await until_healthy(session, self.endpoint)
                    await until_all_are_up(self.log, self._servers)
            except TimeoutError:
                raise EngineFailed(start_timeout(self.log, limit_s)) from None
            stranger = await whose_server(session, self.endpoint, pid=self.pid)
            if stranger is not None:
                raise EngineFailed(stranger)
        await self.prove(Stage.LAUNCHING, limit_s=PROOF_LIMIT_S)

    async def prove(self, stage: Stage, *, limit_s: float) -> None:
        """One small completion; an engine that does not answer may be about to end, which is waited for.

        Raises:
            EngineFailed: It ended, is dead behind its `/health`, hangs, or answers something else.
        """
        async with aiohttp.ClientSession(headers=self.endpoint.headers) as session:
            failure = await self.unless_it_ends(prove(session, self.endpoint, stage=stage, limit_s=limit_s), stage)
        if failure is None:
            return
        if failure.kind is not FailureKind.ENGINE_HANG:
            await self.raise_if_dead(stage)
        raise EngineFailed(failure)

    async def raise_if_dead(self, stage: Stage) -> None:
        """After requests failed: an engine that died under them explains it better than its clients do.

        Raises:
            EngineFailed: It ends now, or stays up with `/health` 503 and no EngineCore behind it.
        """
        status = await self.health()
        if status == 200:
            return
        await self.unless_it_ends(asyncio.sleep(_END_SEEN_S), stage)
        if status == 503 and await self.health() == 503:
            raise EngineFailed(self._failure(stage, exit_code=None))

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
                raise EngineFailed(self._failure(stage, exit_code=self._process.exited.result()))
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _failure(self, stage: Stage, *, exit_code: int | None) -> Failure:
        kill = None if self._memory is None else self._memory.look()
        return classify(self.log_text(), stage=stage, exit_code=exit_code, memory_kill=kill)

    async def ends_within(self, limit_s: float) -> bool:
        """Whether the engine has ended or does so within the limit: a load that broke off may have been faster."""
        await asyncio.wait({self._process.exited}, timeout=limit_s)
        return self._process.exited.done()

    async def health(self) -> int | None:
        """What `/health` says now: 200, 503 once vLLM knows that its EngineCore is dead, None without an answer.

        A slow answer is no death: under load the API server may be busy for seconds.
        """
        try:
            async with aiohttp.ClientSession(headers=self.endpoint.headers) as session:
                return await health(session, self.endpoint)
        except (aiohttp.ClientError, TimeoutError):
            return None

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

    def log_text(self) -> str:
        """The engine's log; of a long one its beginning and its end (see `engine_log.read_log`)."""
        return read_log(self.log)


class EngineLauncher:
    """Launches engines of one program, one at a time, under one guard."""

    def __init__(
        self, supervisor: Supervisor, program: EngineProgram, *, port_range: tuple[int, int] | None = None
    ) -> None:
        self._supervisor = supervisor
        self._program = program
        self._port_range = port_range
        # One for all launches: vLLM 0.26 takes VLLM_API_KEY into the key of torch.compile's cache. With a new one each
        # start compiles anew, which took 27 to 41 s for a 14B model on an H200.
        self._api_key = secrets.token_urlsafe(24)
        self._memory = MemoryHistory()

    async def launch(self, config: EngineConfig, *, log: Path, marker: str) -> EngineProcess:
        """Start an engine on a fresh port with the launcher's random key and a fresh served model name.

        Args:
            config: What to launch.
            log: The engine's own output goes here.
            marker: Study, trial and attempt; put into the environment of every process of the engine.

        Raises:
            HostError: No free port, or the program cannot be started.
        """
        program = self._program
        nonce = f"autotune-{secrets.token_hex(8)}"
        port = free_port(self._port_range)
        arguments = server_arguments(config, port=port, served_model_name=nonce)
        env = engine_environment(config.env, api_key=self._api_key, cpu_threads=program.cpu_threads, marker=marker)
        memory = self._memory.before_launch()
        process = await self._supervisor.launch(
            LaunchSpec(argv=[*_head(program.head, config), *arguments], env=env, log=log, cpus=program.cpus)
        )
        endpoint = EngineEndpoint(
            base_url=f"http://{LOOPBACK}:{port}", model=nonce, api_key=self._api_key, vocab_size=program.vocab_size
        )
        argv = (*_head(program.display_head, config), *arguments)
        return EngineProcess(process, endpoint, argv, log, memory, servers=api_servers(config))

    async def close(self) -> tuple[Seen, ...]:
        """End the guard and whatever engine is left; returns the processes that survived even SIGKILL."""
        return await self._supervisor.close()


def _head(words: Sequence[str], config: EngineConfig) -> list[str]:
    return [server_module(config) if word == SERVER_MODULE else word for word in words]


def warm_spare_command(engine_python: str) -> list[str]:
    """The guard that has imported vLLM and forks each engine from itself."""
    script = Path(__file__).parent / "vllm" / "inside" / "warm_spare.py"
    return [engine_python, str(script), str(GUARD_SCRIPT)]


def warm_spare_environment(env: Mapping[str, str], cpu_threads: int | None) -> dict[str, str]:
    """Environment of the warm spare itself: what an engine gets, less the secrets of one launch."""
    full = engine_environment(env, api_key="", cpu_threads=cpu_threads, marker="spare")
    del full["VLLM_API_KEY"]
    return full
