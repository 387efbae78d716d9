"""Who dies by SIGKILL, without a word: whatever it is, no engine is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from optimizer.core.errors import HostError
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import ProcessIdentity
from optimizer.core.trial import Stage
from optimizer.engine import memory_kill
from optimizer.engine.launch import EngineFailed
from optimizer.host.memory_left import MemoryLeft
from optimizer.host.processes import identity_of, is_alive
from optimizer.host.supervisor import Supervisor
from tests.integration.supervision.helpers import LIMIT_S, family, gone, launching

GIB = 2**30
OPTIMIZER = """
import asyncio, json, os, sys
from pathlib import Path
from optimizer.core.engine_config import EngineConfig
from optimizer.engine.launch import EngineLauncher, EngineProgram
from optimizer.host.supervisor import Supervisor

async def main(folder, faults):
    supervisor = await Supervisor.start(log=folder / "guard.log")
    words = (sys.executable, "-m", "optimizer.engine.simulated")
    launcher = EngineLauncher(supervisor, EngineProgram(head=words, display_head=words))
    config = EngineConfig("simulated", "simulated", {}, {"AUTOTUNE_SIM_FAULTS": faults})
    engine = await launcher.launch(config, log=folder / "engine.log", marker="s/0/1")
    if "never_ready" not in faults:
        await engine.wait_ready(limit_s=60)
    print(json.dumps({"guard": supervisor._process.pid, "engine": engine.pid}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def started_optimizer(folder: Path, *faults: str) -> tuple[asyncio.subprocess.Process, list[ProcessIdentity]]:
    """A process that has launched an engine, and its guard and engine."""
    script = json.dumps([{"fault": fault} for fault in faults])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OPTIMIZER, str(folder), script), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pids = json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S))
    async with asyncio.timeout(LIMIT_S):
        while len(family(pids["engine"])) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return process, [identity_of(pids["guard"]), *family(pids["engine"])]


@pytest.mark.parametrize("faults", [(), ("never_ready",), ("ignore_sigterm", "escape_group")])
async def test_a_killed_optimizer_leaves_neither_guard_nor_engine(tmp_path, faults):
    optimizer, left_behind = await started_optimizer(tmp_path, *faults)
    try:
        optimizer.kill()
        await gone(left_behind)
    finally:
        await optimizer.wait()
        for process in left_behind:
            if is_alive(process):
                os.kill(process.pid, signal.SIGKILL)
    assert (tmp_path / "guard.log").read_text() == ""


async def test_a_killed_guard_takes_the_engine_along(guard_log, tmp_path):
    supervisor = await Supervisor.start(log=guard_log)
    engine = await launching(supervisor, tmp_path)()
    await engine.wait_ready(limit_s=LIMIT_S)
    members = family(engine.pid)
    psutil.Process(supervisor._process.pid).kill()
    assert await engine.ends_within(LIMIT_S)
    with pytest.raises(HostError, match="guard"):
        await engine.stop()
    with pytest.raises(HostError, match="guard"):
        await launching(supervisor, tmp_path)()
    await gone(members)
    await supervisor.close()


async def failure_of_a_killed_engine(launch) -> Failure:
    """What is made of an engine whose leader gets SIGKILL from somebody else."""
    engine = await launch()
    await engine.wait_ready(limit_s=LIMIT_S)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineFailed) as caught:
        await engine.unless_it_ends(asyncio.Event().wait(), Stage.MEASURING)
    assert (await engine.stop()).left == ()
    return caught.value.failure


async def test_an_engine_that_somebody_killed_is_the_hosts_fault(launch):
    failure = await failure_of_a_killed_engine(launch)
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.ENGINE_CRASH, Blame.HOST, -9)
    assert failure.retryable


async def test_an_engine_that_the_kernel_killed_for_memory_is_told_by_its_count(launch, monkeypatch):
    seen = iter([MemoryLeft(8 * GIB, 0), MemoryLeft(8 * GIB, 1), MemoryLeft(2 * GIB, 1), MemoryLeft(2 * GIB, 2)])
    monkeypatch.setattr(memory_kill, "memory_left", lambda: next(seen))
    alone, short = [await failure_of_a_killed_engine(launch) for _ in range(2)]
    assert (alone.kind, alone.blame) == (FailureKind.OUT_OF_MEMORY, Blame.CONFIG)
    assert (short.kind, short.blame) == (FailureKind.OUT_OF_MEMORY, Blame.HOST), "another launch had four times as much"


async def test_a_killed_core_ends_its_api_server(launch):
    engine = await launch()
    await engine.wait_ready(limit_s=LIMIT_S)
    leader, core = family(engine.pid)
    os.kill(core.pid, signal.SIGKILL)
    assert await engine.ends_within(LIMIT_S)
    report = await engine.stop()
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert not is_alive(leader)
