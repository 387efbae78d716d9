"""What drives a guard and the engines under it, and looks at what is left of them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import psutil

from optimizer.core.engine_config import EngineConfig
from optimizer.core.record import ProcessIdentity
from optimizer.engine.launch import EngineLauncher, EngineProcess, EngineProgram
from optimizer.host.guard import environment_of, look
from optimizer.host.processes import identity_of, is_alive
from optimizer.host.supervisor import GUARD_SCRIPT, SupervisedProcess, Supervisor

LIMIT_S = 60.0
"""For anything that is waited for; a loaded machine takes its time."""
GONE_WITHIN_S = 10.0
"""How long an engine may outlive its optimizer."""
SIMULATED = (sys.executable, "-m", "optimizer.engine.simulated")
PATIENT_GUARD = (
    *(sys.executable, "-I", "-S", "-c"),
    f"import sys\nsys.path.insert(0, {str(GUARD_SCRIPT.parent)!r})\nimport guard\n"
    "guard._LEADERLESS_GRACE_S = 5.0\nguard.run()",
)
"""A guard that waits longer for processes without a leader: on a loaded machine the obedient take their time too."""

Launch = Callable[..., Coroutine[Any, Any, EngineProcess]]
Spawn = Callable[..., Coroutine[Any, Any, SupervisedProcess]]


def family(pid: int) -> list[ProcessIdentity]:
    """A process and all below it."""
    process = psutil.Process(pid)
    return [identity_of(one.pid) for one in (process, *process.children(recursive=True))]


async def gone(processes: Sequence[ProcessIdentity], *, within_s: float = GONE_WITHIN_S) -> None:
    """Polls `/proc`: nothing tells of the end of another's child."""
    deadline = time.monotonic() + within_s
    while left := [process.pid for process in processes if is_alive(process)]:
        assert time.monotonic() < deadline, f"{left} still live after {within_s} s"
        await asyncio.sleep(0.02)


async def logged(log: Path, text: str) -> None:
    """Waits until a program has written `text`."""
    async with asyncio.timeout(LIMIT_S):
        while not log.exists() or text not in log.read_text():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


async def has_become(pid: int, name: str) -> None:
    """Waits until a forked child is the program of that name; on the way there it shows no environment for a moment."""
    async with asyncio.timeout(LIMIT_S):
        while (seen := look(pid)) is None or seen.name != name or not environment_of(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def launching(
    supervisor: Supervisor, folder: Path, *, head: Sequence[str] = SIMULATED, launcher: EngineLauncher | None = None
) -> Launch:
    """Launches simulated engines, with scripted faults; their logs go into `folder`."""
    launcher = launcher or EngineLauncher(supervisor, EngineProgram(head=head, display_head=SIMULATED))

    async def launch(
        faults: Sequence[str | dict[str, Any]] = (), flags: dict[str, Any] | None = None, **env: str
    ) -> EngineProcess:
        script = [{"fault": fault} if isinstance(fault, str) else fault for fault in faults]
        env = {"AUTOTUNE_SIM_FAULTS": json.dumps(script), "AUTOTUNE_SIM_SPEED": "20", **env}
        config = EngineConfig("simulated", "simulated", flags or {}, env)
        log = folder / f"engine-{time.monotonic_ns()}.log"
        return await launcher.launch(config, log=log, marker="study/0/1")

    return launch
