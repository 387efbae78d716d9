"""Optimizer and guard both killed, the engine deaf to SIGTERM: the next run finds it by the ledger and ends it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from optimizer.core.errors import HostError
from optimizer.core.record import ProcessIdentity
from optimizer.engine.launch import EngineLauncher, EngineProgram
from optimizer.host import orphans
from optimizer.host.guard import ProcessKey, start_ticks
from optimizer.host.ledger import EngineLedger, LedgerEntry
from optimizer.host.orphans import reap_orphans
from optimizer.host.processes import identity_of, is_alive, our_processes
from optimizer.host.supervisor import LaunchSpec, Supervisor
from tests.integration.supervision.helpers import LIMIT_S, SIMULATED, family, gone, launching, logged

OPTIMIZER = """
import asyncio, json, sys
from pathlib import Path
from optimizer.core.engine_config import EngineConfig
from optimizer.engine.launch import EngineLauncher, EngineProgram
from optimizer.host.ledger import EngineLedger
from optimizer.host.supervisor import Supervisor

async def main(folder, faults):
    supervisor = await Supervisor.start(log=folder / "guard.log", ledger=EngineLedger(folder / "ledger"))
    words = (sys.executable, "-m", "optimizer.engine.simulated")
    launcher = EngineLauncher(supervisor, EngineProgram(head=words, display_head=words))
    config = EngineConfig("simulated", "simulated", {}, {"AUTOTUNE_SIM_FAULTS": faults})
    engine = await launcher.launch(config, log=folder / "engine.log", marker="s/0/1")
    await engine.wait_ready(limit_s=60)
    print(json.dumps({"guard": supervisor._process.pid, "engine": engine.pid}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""
DEAF = json.dumps([{"fault": "ignore_sigterm"}, {"fault": "escape_group"}])


@pytest.fixture
def ledger(tmp_path: Path) -> EngineLedger:
    (tmp_path / "ledger").mkdir()
    return EngineLedger(tmp_path / "ledger")


@dataclass
class Run:
    """An optimizer with a deaf engine of two processes, one of which left the session."""

    optimizer: asyncio.subprocess.Process
    guard: ProcessIdentity
    engine: list[ProcessIdentity]

    async def kill_optimizer(self) -> None:
        self.optimizer.kill()
        await self.optimizer.wait()

    async def kill_both(self) -> None:
        # Stopped first, so that neither can tell the other's end and act on it.
        os.kill(self.guard.pid, signal.SIGSTOP)
        await self.kill_optimizer()
        os.kill(self.guard.pid, signal.SIGKILL)
        await gone([self.guard])


@pytest_asyncio.fixture
async def run(tmp_path: Path, ledger: EngineLedger) -> AsyncIterator[Run]:
    optimizer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OPTIMIZER, str(tmp_path), DEAF), stdout=asyncio.subprocess.PIPE
    )
    assert optimizer.stdout is not None
    told = json.loads(await asyncio.wait_for(optimizer.stdout.readline(), LIMIT_S))
    running = Run(optimizer, identity_of(told["guard"]), family(told["engine"]))
    assert len(running.engine) == 2
    yield running
    for process in (running.guard, *running.engine):
        if is_alive(process):
            os.kill(process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        optimizer.kill()
    await optimizer.wait()


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else's, in a session of its own."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


def scratch_of(entry: LedgerEntry) -> Path:
    assert entry.scratch is not None
    return Path(entry.scratch)


async def test_the_next_run_ends_what_survived_its_optimizer_and_its_guard(run, ledger):
    await run.kill_both()
    assert all(is_alive(process) for process in run.engine), "else there is nothing to show"
    (entry,) = ledger.view().entries
    assert scratch_of(entry).is_dir()
    (told,) = await reap_orphans(ledger)
    assert not any(is_alive(process) for process in run.engine)
    assert f"an earlier run (pid {run.optimizer.pid}) was killed" in told
    assert "of trial s/0/1" in told
    assert all(f"{process.pid} (" in told for process in run.engine)
    assert not scratch_of(entry).exists()
    assert list(ledger.folder.iterdir()) == []
    assert await reap_orphans(ledger) == ()


async def test_a_guard_that_lives_ends_its_engine_itself(run, ledger):
    (entry,) = ledger.view().entries
    await run.kill_optimizer()
    await gone([run.guard, *run.engine])
    assert not scratch_of(entry).exists()
    assert await reap_orphans(ledger) == ()
    assert list(ledger.folder.iterdir()) == []


async def test_a_guard_that_is_at_it_is_waited_for(run, ledger):
    await run.kill_optimizer()
    await reap_orphans(ledger)
    assert not any(is_alive(process) for process in (run.guard, *run.engine))
    assert list(ledger.folder.iterdir()) == []


async def test_a_guard_that_is_stuck_is_ended_with_its_engine(run, ledger, monkeypatch):
    monkeypatch.setattr(orphans, "_GUARD_TIDIES_S", 0.2)
    monkeypatch.setattr(orphans, "_GRACE_S", 0.2)
    os.kill(run.guard.pid, signal.SIGSTOP)
    await run.kill_optimizer()
    (told,) = await reap_orphans(ledger)
    assert f"{run.guard.pid} (" in told
    assert not any(is_alive(process) for process in (run.guard, *run.engine))


async def test_what_belongs_to_a_run_that_lives_is_left_alone(run, ledger):
    assert await reap_orphans(ledger) == ()
    assert all(is_alive(process) for process in (run.guard, *run.engine))
    assert len(ledger.view().entries) == 1


async def test_a_process_that_has_the_pid_of_a_dead_engine_is_left_alone(run, ledger, foreign):
    await run.kill_both()
    for process in run.engine:
        os.kill(process.pid, signal.SIGKILL)
    await gone(run.engine)
    (entry,) = ledger.view().entries
    assert entry.leader is not None
    taken = ProcessKey(foreign.pid, start_ticks(foreign.pid) - 1)
    ledger.write(entry.model_copy(update={"leader": taken, "guard": taken}))
    assert await reap_orphans(ledger) == (), "nothing is left of it, so nothing is said"
    assert foreign.poll() is None
    assert list(ledger.folder.iterdir()) == []


async def test_what_cannot_be_ended_is_told_and_kept_for_the_next_time(run, ledger, monkeypatch):
    await run.kill_both()
    monkeypatch.setattr(orphans, "_GRACE_S", 0.1)
    with monkeypatch.context() as deaf_to_all:
        deaf_to_all.setattr("optimizer.host.guard._KILL_WAIT_S", 0.1)
        deaf_to_all.setattr("optimizer.host.guard.send", lambda process, number: None)
        deaf_to_all.setattr(os, "killpg", lambda group, number: None)
        (told,) = await reap_orphans(ledger)
    assert "survive SIGKILL and may hold memory" in told
    assert all(str(process.pid) in told for process in run.engine)
    (entry,) = ledger.view().entries
    assert scratch_of(entry).is_dir()
    assert len(await reap_orphans(ledger)) == 1
    assert not any(is_alive(process) for process in run.engine)
    assert ledger.view().entries == ()


# --- the optimizer lives


async def test_a_killed_guard_leaves_nothing_to_an_optimizer_that_lives(guard_log, tmp_path, ledger):
    supervisor = await Supervisor.start(log=guard_log, ledger=ledger)
    engine = await launching(supervisor, tmp_path)(["ignore_sigterm", "escape_group"])
    await engine.wait_ready(limit_s=LIMIT_S)
    members = family(engine.pid)
    psutil.Process(supervisor._process.pid).kill()
    assert await engine.ends_within(LIMIT_S)
    assert await supervisor.close() == ()
    assert not any(is_alive(member) for member in members)
    assert list(ledger.folder.iterdir()) == []


async def test_a_guard_that_dies_under_a_request_says_what_was_ended_without_it(guard_log, tmp_path, ledger):
    supervisor = await Supervisor.start(log=guard_log, ledger=ledger)
    log = tmp_path / "engine.log"
    script = "trap '' TERM; echo up; while :; do sleep 1; done"
    process = await supervisor.launch(LaunchSpec(argv=["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, log=log))
    await logged(log, "up")
    os.kill(supervisor._process.pid, signal.SIGSTOP)
    stopping = asyncio.create_task(process.stop(grace_s=LIMIT_S))
    await asyncio.sleep(0)
    os.kill(supervisor._process.pid, signal.SIGKILL)
    with pytest.raises(HostError, match=rf"ended with exit code -9; ended without it: .*{process.identity.pid} \(sh\)"):
        await stopping
    assert not is_alive(process.identity)
    await supervisor.close()


async def test_the_ledger_follows_guard_and_engine(guard_log, tmp_path, ledger):
    supervisor = await Supervisor.start(log=guard_log, ledger=ledger)
    (entry,) = ledger.view().entries
    assert (entry.owner.pid, entry.guard.pid, entry.leader) == (os.getpid(), supervisor._process.pid, None)
    engine = await launching(supervisor, tmp_path)()
    (entry,) = ledger.view().entries
    assert (entry.leader, entry.trial) == (ProcessKey(engine.pid, start_ticks(engine.pid)), "study/0/1")
    await engine.stop()
    (entry,) = ledger.view().entries
    assert (entry.leader, entry.trial) == (None, None)
    assert await supervisor.close() == ()
    assert list(ledger.folder.iterdir()) == []


async def test_twenty_launches_leave_no_descriptor_file_or_process(guard_log, tmp_path, ledger):
    supervisor = await Supervisor.start(log=guard_log, ledger=ledger)
    launcher = EngineLauncher(supervisor, EngineProgram(head=SIMULATED, display_head=SIMULATED))
    launch = launching(supervisor, tmp_path, launcher=launcher)

    async def round_trip() -> None:
        engine = await launch(["never_ready"])
        assert (await engine.stop()).left == ()

    await round_trip()
    (entry,) = ledger.view().entries
    gc.collect()  # else what earlier tests have left is closed at any time
    ours, guards = len(os.listdir("/proc/self/fd")), psutil.Process(supervisor._process.pid).num_fds()  # noqa: PTH208
    for _ in range(20):
        await round_trip()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == ours  # noqa: PTH208
    assert psutil.Process(supervisor._process.pid).num_fds() == guards
    assert list(scratch_of(entry).iterdir()) == []
    assert [one.pid for one in our_processes(entry.mark)] == [supervisor._process.pid]
    await launcher.close()
    assert not scratch_of(entry).exists()
    assert our_processes(entry.mark) == []


SHARING = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
shared = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister("/" + shared.name, "shared_memory")
print(shared.name, "up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("killed", [(), ("engine",), ("guard",)])
async def test_shared_memory_goes_with_an_engine_that_does_not_remove_it(supervisor, tmp_path, killed):
    log = tmp_path / "engine.log"
    spec = LaunchSpec(argv=[sys.executable, "-c", SHARING], env={"PATH": "/usr/bin:/bin"}, log=log)
    process = await supervisor.launch(spec)
    await logged(log, "up")
    name = log.read_text().split()[0]
    assert name in os.listdir("/dev/shm")  # noqa: PTH208, S108
    process.note_shared_memory()
    for who in killed:
        os.kill(process.identity.pid if who == "engine" else supervisor._process.pid, signal.SIGKILL)
        await process.exited
    if "guard" in killed:
        await supervisor.close()
    else:
        await process.stop(grace_s=LIMIT_S)
    assert name not in os.listdir("/dev/shm")  # noqa: PTH208, S108


@pytest.fixture(params=["short", "too long"])
def temporary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, whose path leaves room for that of a socket or not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        folder = Path(base) / ("d" * (1 if request.param == "short" else 60))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


async def test_every_launch_has_a_temporary_folder_that_goes_with_it(guard_log, tmp_path, temporary):
    supervisor = await Supervisor.start(log=guard_log)
    seen = []
    for number in range(2):
        log = tmp_path / f"engine-{number}.log"
        script = 'test -z "$TMPDIR" || mktemp -d; echo "in [$TMPDIR]"; exec sleep 60'
        spec = LaunchSpec(argv=["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, log=log)
        process = await supervisor.launch(spec)
        await logged(log, "]")
        seen.append(log.read_text().rpartition("[")[2].partition("]")[0])
        during = len(files_below(temporary))
        await process.stop(grace_s=LIMIT_S)
        assert (during, len(files_below(temporary))) == ((3, 1) if temporary.name == "d" else (0, 0))
    assert set(map(bool, seen)) == {temporary.name == "d"}
    assert len(set(seen)) == (2 if temporary.name == "d" else 1)
    await supervisor.close()
    assert files_below(temporary) == []


def files_below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))
