"""The optimizer's side of the guard: launch an engine, learn that it ended, stop it and know that it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from optimizer.core.errors import HostError
from optimizer.core.record import ProcessIdentity
from optimizer.host import guard as guard_module
from optimizer.host.processes import boot_id

GUARD_SCRIPT = Path(guard_module.__file__)
_CLOSE_LIMIT_S = 12.0
_ANSWER_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """How an engine went.

    Attributes:
        exit_code: Of its leader; negative for a signal; None when it was never collected.
        term_s: How long it took from SIGTERM until it was gone, or until patience ended.
        killed: Processes that had to be killed.
        left: Processes that survived even SIGKILL.
    """

    exit_code: int | None
    term_s: float
    killed: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What the guard starts: argv, the whole environment, where output goes, and the cores it may use."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cpus: Sequence[int] = ()


class SupervisedProcess:
    """One engine under the guard."""

    def __init__(self, supervisor: Supervisor, identity: ProcessIdentity) -> None:
        self._supervisor = supervisor
        self.identity = identity
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolves to the leader's exit code when it ends by itself."""

    async def stop(self, *, grace_s: float) -> StopReport:
        """SIGTERM, up to `grace_s` of patience, SIGKILL for the rest; returns when nothing of it is left.

        Raises:
            HostError: The guard is gone, so nobody can say what is left.
        """
        answer = await self._supervisor.request(
            {"stop": {"grace_s": grace_s}}, "stopped", limit_s=grace_s + _ANSWER_LIMIT_S
        )
        return StopReport(
            exit_code=answer["exit_code"],
            term_s=answer["term_s"],
            killed=tuple(answer["killed"]),
            left=tuple(answer["left"]),
        )


class Supervisor:
    """A running guard. One engine at a time."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._stdin = cast(asyncio.StreamWriter, process.stdin)  # both were asked for as pipes
        self._stdout = cast(asyncio.StreamReader, process.stdout)
        self._log = log
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._engine: SupervisedProcess | None = None
        self._reader = asyncio.create_task(self._read(), name="guard-reader")
        self._asking = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        *,
        log: Path,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        limit_s: float = 60.0,
    ) -> Supervisor:
        """Start a guard and wait until it is ready.

        Args:
            log: Where its own stderr goes.
            command: Python and script that become the guard; None for the plain one. A warm spare imports vLLM first.
            env: Its environment; None inherits ours.
            limit_s: How long it may take to be ready.

        Raises:
            HostError: It ended or was not ready in time.
        """
        argv = list(command) if command is not None else [sys.executable, "-I", "-S", str(GUARD_SCRIPT)]
        try:
            with log.open("ab") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    env=dict(env) if env is not None else None,
                    start_new_session=True,
                )
        except OSError as error:
            raise HostError(f"the guard {argv[0]} with log {log} cannot be started: {error}") from error
        supervisor = cls(process, log)
        try:
            await asyncio.wait_for(supervisor._next("ready"), limit_s)
        except BaseException as error:
            if process.returncode is None:
                process.kill()  # it has started nothing yet, and may be busy importing
            await supervisor.close()
            if isinstance(error, TimeoutError):
                raise HostError(f"the guard was not ready within {limit_s:.0f} s", hint=f"see {log}") from None
            raise
        return supervisor

    async def launch(self, spec: LaunchSpec) -> SupervisedProcess:
        """Start an engine.

        Raises:
            HostError: The program cannot be started, or the guard is gone.
        """
        wanted = {"argv": list(spec.argv), "env": dict(spec.env), "log": os.fspath(spec.log), "cpus": list(spec.cpus)}
        await self.request({"launch": wanted}, "launched", limit_s=_ANSWER_LIMIT_S)
        return cast(SupervisedProcess, self._engine)  # set by the reader, before it passed the answer on

    async def request(self, message: dict[str, Any], answer: str, *, limit_s: float) -> dict[str, Any]:
        """Send one request and wait for its answer. Not to be cancelled halfway: shield it.

        Raises:
            HostError: The guard is gone, or does not answer in time: it is killed then, which ends its engine too.
        """
        async with self._asking:
            if self._stdin.is_closing():
                raise HostError("the guard of the engine is closed", hint=f"see {self._log}")
            try:
                self._stdin.write(json.dumps(message).encode() + b"\n")
                await self._stdin.drain()
            except (BrokenPipeError, ConnectionResetError) as error:
                raise HostError("the guard of the engine is gone", hint=f"see {self._log}") from error
            try:
                return await asyncio.wait_for(self._next(answer), limit_s)
            except TimeoutError:
                self._process.kill()
                raise HostError(f"the guard did not answer within {limit_s:.0f} s", hint=f"see {self._log}") from None

    async def close(self) -> None:
        """End the guard, and through it everything it started."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_LIMIT_S)
        except TimeoutError:
            self._process.kill()
        await self._reader

    async def _next(self, expected: str) -> dict[str, Any]:
        answer = await self._answers.get()
        if expected in answer:
            return dict(answer[expected])
        if "launch_failed" in answer:
            raise HostError(f"the engine's program cannot be started: {answer['launch_failed']['error']}")
        code = answer["guard_ended"]["exit_code"]
        raise HostError(f"the guard of the engine ended with exit code {code}", hint=f"see {self._log}")

    async def _read(self) -> None:
        while line := await self._stdout.readline():
            message = json.loads(line)
            if "exited" in message:
                self._engine_ended(message["exited"]["exit_code"])
                continue
            if "launched" in message:  # here, not in `launch`: an engine that ends at once must not be missed
                self._engine = SupervisedProcess(self, _identity(message["launched"]))
            self._answers.put_nowait(message)
        code = await self._process.wait()
        self._answers.put_nowait({"guard_ended": {"exit_code": code}})
        self._engine_ended(-1)

    def _engine_ended(self, exit_code: int) -> None:
        if self._engine is not None and not self._engine.exited.done():
            self._engine.exited.set_result(exit_code)


def _identity(launched: dict[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(platform.node(), boot_id(), launched["pid"], launched["start_ticks"])
