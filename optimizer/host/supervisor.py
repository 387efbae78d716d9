"""The optimizer's side of the guard: launch an engine, learn that it ended, stop it and know that it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from optimizer.core.errors import HostError
from optimizer.core.record import ProcessIdentity
from optimizer.host import guard as guard_module
from optimizer.host.files import make_folder
from optimizer.host.guard import MARK_VARIABLE, ProcessKey, Seen, remove_scratch
from optimizer.host.ledger import EngineLedger, LedgerEntry, pid_namespace
from optimizer.host.orphans import end_remains, living
from optimizer.host.processes import TRIAL_VARIABLE, boot_id, identity_of, own_identity
from optimizer.host.scratch import SCRATCH_HINT, make_scratch, remove_shared_memory, shared_memory_of

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
    """What the guard starts: argv, the whole environment, where output goes, and the cores it may use.

    The environment that the program gets says TMPDIR and the guard's mark besides.

    Attributes:
        stdin: A file that it reads on stdin; None gives it nothing to read.
        stderr: A file of its own for stderr; None sends that to the log as well. A warm spare knows neither.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cpus: Sequence[int] = ()
    stdin: Path | None = None
    stderr: Path | None = None


class SupervisedProcess:
    """One engine under the guard."""

    def __init__(self, supervisor: Supervisor, identity: ProcessIdentity) -> None:
        self._supervisor = supervisor
        self.identity = identity
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolves to the leader's exit code when it ends by itself."""

    async def stop(self, *, grace_s: float) -> StopReport:
        """SIGTERM, up to `grace_s` of patience, SIGKILL for the rest; returns when nothing of it is left, or 4 s later.

        Raises:
            HostError: The guard is gone: the engine was or is being ended without it (see `Supervisor.close`).
        """
        return await self._supervisor.stop_engine(grace_s)

    def note_shared_memory(self) -> None:
        """Look which segments the engine has mapped: should it die by itself, `stop` finds nobody to ask any more."""
        self._supervisor.note_shared_memory()


class Supervisor:
    """A running guard. One engine at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, entry: LedgerEntry, ledger: EngineLedger | None
    ) -> None:
        self._process = process
        self._stdin = cast(asyncio.StreamWriter, process.stdin)  # both were asked for as pipes
        self._stdout = cast(asyncio.StreamReader, process.stdout)
        self._log = log
        self._entry = entry
        self._ledger = ledger
        self._launches = 0
        self._segments: set[Path] = set()
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._engine: SupervisedProcess | None = None
        self._left: tuple[Seen, ...] = ()
        self._asking = asyncio.Lock()
        self._reader = asyncio.create_task(self._read(), name="guard-reader")

    @classmethod
    async def start(
        cls,
        *,
        log: Path,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        limit_s: float = 60.0,
        ledger: EngineLedger | None = None,
    ) -> Supervisor:
        """Start a guard and wait until it is ready.

        Args:
            log: Where its own stderr goes.
            command: Python and script that become the guard; None for the plain one. A warm spare imports vLLM first.
            env: Its environment; None inherits ours.
            limit_s: How long it may take to be ready.
            ledger: Told of guard and engines, so that a later run finds them should this one and the guard be killed.

        Raises:
            HostError: It ended or was not ready in time, or the ledger cannot be written.
        """
        argv = list(command) if command is not None else [sys.executable, "-I", "-S", str(GUARD_SCRIPT)]
        mark = secrets.token_hex(6)
        scratch = make_scratch(mark)
        own = {MARK_VARIABLE: mark} | ({} if scratch is None else {"TMPDIR": str(scratch)})
        try:
            with log.open("ab") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    env={**(os.environ if env is None else env), **own},
                    start_new_session=True,
                )
        except BaseException as error:
            remove_scratch(own.get("TMPDIR"), mark)
            if isinstance(error, OSError):
                raise HostError(f"the guard {argv[0]} with log {log} cannot be started: {error}") from error
            raise
        supervisor = cls(process, log, _entry(mark, process.pid, own.get("TMPDIR")), ledger)
        try:
            supervisor._keep(supervisor._entry)
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
            HostError: The program cannot be started, the guard is gone, or the ledger cannot be written.
        """
        wanted: dict[str, Any] = {
            "argv": list(spec.argv),
            "env": {**spec.env, **self._surroundings()},
            "log": os.fspath(spec.log),
            "cpus": list(spec.cpus),
            **{name: os.fspath(path) for name, path in _streams(spec) if path is not None},
        }
        self._segments = set()
        launched_at_s = time.time()
        answer = await self.request({"launch": wanted}, "launched", limit_s=_ANSWER_LIMIT_S)
        launched = {
            "leader": ProcessKey(**answer),
            "trial": spec.env.get(TRIAL_VARIABLE),
            "launched_at_s": launched_at_s,
        }
        self._keep(self._entry.model_copy(update=launched))
        return cast(SupervisedProcess, self._engine)  # set by the reader, before it passed the answer on

    def note_shared_memory(self) -> None:
        """See `SupervisedProcess.note_shared_memory`."""
        self._segments |= shared_memory_of(process.pid for process in living(self._entry))

    async def stop_engine(self, grace_s: float) -> StopReport:
        """See `SupervisedProcess.stop`."""
        self.note_shared_memory()
        answer = await self.request({"stop": {"grace_s": grace_s}}, "stopped", limit_s=grace_s + _ANSWER_LIMIT_S)
        report = StopReport(
            exit_code=answer["exit_code"],
            term_s=answer["term_s"],
            killed=tuple(answer["killed"]),
            left=tuple(answer["left"]),
        )
        if not report.left:
            remove_shared_memory(self._segments, since_s=self._entry.launched_at_s)
            self._remove_temporary_files()
            self._keep(self._entry.model_copy(update={"leader": None, "trial": None}))
        return report

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

    async def close(self) -> tuple[Seen, ...]:
        """End the guard, and through it everything it started; what is left then is ended without it.

        Returns:
            Processes that survived even SIGKILL; none as a rule.
        """
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_LIMIT_S)
        except TimeoutError:
            self._process.kill()
        await self._reader
        return self._left

    def _surroundings(self) -> dict[str, str]:
        """Variables that every engine gets: the mark it is known by, and a TMPDIR of its own."""
        own = {MARK_VARIABLE: self._entry.mark}
        if self._entry.scratch is not None:
            self._launches += 1
            own["TMPDIR"] = str(make_folder(Path(self._entry.scratch) / str(self._launches), hint=SCRATCH_HINT))
        return own

    def _remove_temporary_files(self) -> None:
        """The engine's, and none of those that a warm spare may still use."""
        if self._entry.scratch is not None:
            shutil.rmtree(Path(self._entry.scratch) / str(self._launches), ignore_errors=True)

    def _keep(self, entry: LedgerEntry) -> None:
        self._entry = entry
        if self._ledger is not None:
            self._ledger.write(entry)

    async def _next(self, expected: str) -> dict[str, Any]:
        answer = await self._answers.get()
        if expected in answer:
            return dict(answer[expected])
        if "launch_failed" in answer:
            raise HostError(f"the engine's program cannot be started: {answer['launch_failed']['error']}")
        code, done = answer["guard_ended"]["exit_code"], answer["guard_ended"]["done"]
        raise HostError(f"the guard of the engine ended with exit code {code}{done}", hint=f"see {self._log}")

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
        self._engine_ended(-1)
        done = await self._end_remains()
        self._answers.put_nowait({"guard_ended": {"exit_code": code, "done": done}})

    async def _end_remains(self) -> str:
        """After the guard's end: see that nothing of it is left, and say what was. As a rule nothing is."""
        remains = await asyncio.to_thread(end_remains, self._entry)
        self._left = remains.left
        if not remains.left:
            remove_shared_memory(self._segments, since_s=self._entry.launched_at_s)
            remove_scratch(self._entry.scratch, self._entry.mark)
            if self._ledger is not None:
                self._ledger.remove(self._entry.mark)
        return "".join(f"; {fate}" for fate in remains.fates("ended without it:"))

    def _engine_ended(self, exit_code: int) -> None:
        if self._engine is not None and not self._engine.exited.done():
            self._engine.exited.set_result(exit_code)


def _streams(spec: LaunchSpec) -> tuple[tuple[str, Path | None], ...]:
    return ("stdin", spec.stdin), ("stderr", spec.stderr)


def _entry(mark: str, guard_pid: int, scratch: str | None) -> LedgerEntry:
    owner, guard = own_identity(), identity_of(guard_pid)
    return LedgerEntry(
        host=owner.host,
        boot_id=owner.boot_id,
        pid_namespace=pid_namespace(),
        mark=mark,
        owner=ProcessKey(owner.pid, owner.start_ticks),
        guard=ProcessKey(guard.pid, guard.start_ticks),
        scratch=scratch,
    )


def _identity(launched: dict[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(platform.node(), boot_id(), launched["pid"], launched["start_ticks"])
