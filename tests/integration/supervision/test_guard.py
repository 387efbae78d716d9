"""The guard with plain programs: whatever they do, nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from optimizer.core.errors import HostError
from optimizer.host.processes import identity_of, is_alive
from optimizer.host.supervisor import GUARD_SCRIPT, LaunchSpec, Supervisor
from tests.integration.supervision.helpers import LIMIT_S, PATIENT_GUARD, family, gone, logged

DEAF = "trap '' TERM; echo up; while :; do sleep 1; done"


def guard_of(supervisor: Supervisor) -> psutil.Process:
    return psutil.Process(supervisor._process.pid)


def open_files(pid: int | str) -> list[Path]:
    return [file.resolve() for file in Path(f"/proc/{pid}/fd").iterdir()]


async def exit_code(process) -> int:
    return await asyncio.wait_for(asyncio.shield(process.exited), LIMIT_S)


async def test_a_program_that_obeys_is_stopped_by_sigterm_alone(spawn):
    process = await spawn("sleep 60 & trap 'kill $!; wait; exit 0' TERM; echo up; wait")
    members = family(process.identity.pid)
    assert len(members) == 2
    report = await process.stop(grace_s=LIMIT_S)
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert report.term_s < LIMIT_S
    assert not any(is_alive(member) for member in members)
    assert await exit_code(process) == 0


async def test_no_exit_code_is_missed_however_soon_the_program_ends(spawn):
    for _ in range(20):
        process = await spawn("exec sleep 60")
        assert (await process.stop(grace_s=LIMIT_S)).exit_code == -signal.SIGTERM
        assert await exit_code(process) == -signal.SIGTERM


async def test_a_program_that_is_deaf_to_sigterm_is_killed(spawn):
    process = await spawn(DEAF)
    report = await process.stop(grace_s=0.2)
    assert report.exit_code == -signal.SIGKILL
    assert process.identity.pid in report.killed
    assert report.left == ()
    assert 0.2 <= report.term_s < LIMIT_S
    assert not is_alive(process.identity)


async def test_a_child_in_a_session_of_its_own_is_swept(spawn):
    process = await spawn("setsid sh -c 'trap \"\" TERM; echo up; sleep 60' & exec sleep 60")
    _, *children = family(process.identity.pid)
    assert all(os.getsid(child.pid) != os.getsid(process.identity.pid) for child in children)
    report = await process.stop(grace_s=0.2)
    assert {child.pid for child in children} <= set(report.killed)
    assert not any(is_alive(child) for child in children)


@pytest.mark.parametrize("guard_command", [PATIENT_GUARD], ids=["patient"])
async def test_orphans_of_a_killed_leader_are_swept(spawn):
    process = await spawn("sleep 60 & echo up; wait")
    leader, *orphans = family(process.identity.pid)
    os.kill(leader.pid, signal.SIGKILL)
    assert await exit_code(process) == -signal.SIGKILL
    assert all(is_alive(orphan) for orphan in orphans)
    report = await process.stop(grace_s=LIMIT_S)
    assert (report.exit_code, report.killed, report.left) == (-signal.SIGKILL, (), ())
    assert report.term_s < LIMIT_S / 3
    assert not any(is_alive(orphan) for orphan in orphans)


@pytest.mark.parametrize("leader_ends", ["before the stop", "at the stop"])
async def test_deaf_orphans_of_a_leader_that_ended_are_not_waited_for(spawn, leader_ends):
    process = await spawn("(trap '' TERM; echo up; while :; do sleep 1; done) & exec sleep 60")
    leader, *orphans = family(process.identity.pid)
    if leader_ends == "before the stop":
        os.kill(leader.pid, signal.SIGKILL)
        await exit_code(process)
    report = await process.stop(grace_s=LIMIT_S)
    assert {orphan.pid for orphan in orphans} & set(report.killed)
    assert report.left == ()
    assert report.term_s < LIMIT_S / 3
    assert not any(is_alive(orphan) for orphan in orphans)


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", -9)])
async def test_a_program_that_ends_at_once_is_not_missed(spawn, script, code):
    process = await spawn(script)
    assert await exit_code(process) == code
    report = await process.stop(grace_s=0.2)
    assert (report.exit_code, report.killed, report.left) == (code, (), ())


async def test_what_cannot_be_started_is_said_and_the_guard_goes_on(spawn, tmp_path):
    for wrong in (
        {"argv": [str(tmp_path / "absent")]},
        {"log": tmp_path / "absent/engine.log"},
        {"cpus": [4095]},
    ):
        with pytest.raises(HostError, match="program cannot be started"):
            await spawn("sleep 60", **wrong)
    process = await spawn("echo up; exec sleep 60")
    assert (await process.stop(grace_s=LIMIT_S)).exit_code == -signal.SIGTERM


async def test_engines_follow_each_other_under_one_guard(spawn):
    first = await spawn("echo up; exec sleep 60")
    await first.stop(grace_s=LIMIT_S)
    second = await spawn("echo up; exec sleep 60")
    assert second.identity != first.identity
    assert not second.exited.done()
    await second.stop(grace_s=LIMIT_S)
    assert await exit_code(second) == -signal.SIGTERM


async def test_a_program_gets_its_own_session_its_cores_and_just_its_environment(spawn, tmp_path):
    core = max(os.sched_getaffinity(0))
    process = await spawn("sleep 60 & echo up; wait", env={"PATH": "/usr/bin:/bin", "ONLY": "this"}, cpus=[core])
    engine = psutil.Process(process.identity.pid)
    assert os.getsid(engine.pid) == engine.pid
    assert engine.cpu_affinity() == [core]
    assert "ONLY" in engine.environ()
    assert "HOME" not in engine.environ()
    assert set(open_files(engine.pid)) == {Path("/dev/null"), tmp_path / "engine.log"}
    await process.stop(grace_s=LIMIT_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_guard_does_not_leave_its_engine_at_a_signal(spawn, supervisor, number):
    process = await spawn("echo up; exec sleep 60")
    guard_of(supervisor).send_signal(number)
    assert (await process.stop(grace_s=LIMIT_S)).exit_code == -signal.SIGTERM


@pytest.mark.parametrize("script", ["echo up; exec sleep 60", DEAF])
async def test_close_leaves_nothing_running(guard_log, script):
    supervisor = await Supervisor.start(log=guard_log)
    process = await supervisor.launch(
        LaunchSpec(argv=["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, log=guard_log.with_name("engine.log"))
    )
    members = [identity_of(guard_of(supervisor).pid), *family(process.identity.pid)]
    await supervisor.close()
    assert not any(is_alive(member) for member in members)
    await supervisor.close()
    with pytest.raises(HostError, match="guard of the engine is closed"):
        await process.stop(grace_s=0.1)


async def test_a_killed_guard_takes_the_leader_along_and_is_reported(guard_log, tmp_path):
    supervisor = await Supervisor.start(log=guard_log)
    script = "trap 'echo got TERM; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    log = tmp_path / "engine.log"
    process = await supervisor.launch(LaunchSpec(argv=["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, log=log))
    await logged(log, "up")
    guard_of(supervisor).kill()
    assert await exit_code(process) == -1
    for _ in range(2):
        with pytest.raises(HostError, match="guard"):
            await process.stop(grace_s=0.1)
    with pytest.raises(HostError, match="guard"):
        await supervisor.launch(LaunchSpec(argv=["true"], env={}, log=log))
    await gone([process.identity])
    assert "got TERM" in log.read_text()
    await supervisor.close()


async def test_a_guard_that_does_not_come_up_is_reported(guard_log, tmp_path):
    with pytest.raises(HostError, match="cannot be started"):
        await Supervisor.start(log=guard_log, command=[str(tmp_path / "absent")])
    with pytest.raises(HostError, match="ended with exit code 5"):
        await Supervisor.start(log=guard_log, command=["sh", "-c", "exit 5"])
    begun = asyncio.get_running_loop().time()
    with pytest.raises(HostError, match="was not ready within") as refused:
        await Supervisor.start(log=guard_log, command=["sleep", "60"], limit_s=0.2)
    assert asyncio.get_running_loop().time() - begun < LIMIT_S / 3
    assert str(guard_log) in str(refused.value.hint)


async def test_a_start_that_is_cancelled_leaves_no_guard(guard_log, tmp_path):
    pid_file = tmp_path / "pid"
    start = asyncio.create_task(
        Supervisor.start(log=guard_log, command=["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"])
    )
    async with asyncio.timeout(LIMIT_S):
        while not pid_file.exists() or not pid_file.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    identity = identity_of(int(pid_file.read_text()))
    start.cancel()
    with suppress(asyncio.CancelledError):
        await start
    assert not is_alive(identity)


async def test_twenty_launches_leak_no_descriptor(spawn, supervisor):
    async def round_trip() -> None:
        process = await spawn("echo up; exec sleep 60")
        await process.stop(grace_s=LIMIT_S)

    await round_trip()
    gc.collect()  # else what earlier tests have left is closed at any time
    ours, guards = len(open_files("self")), guard_of(supervisor).num_fds()
    for _ in range(20):
        await round_trip()
    gc.collect()
    assert len(open_files("self")) == ours
    assert guard_of(supervisor).num_fds() == guards


async def test_the_guard_needs_no_package_of_ours(guard_log, tmp_path):
    command = [sys.executable, "-I", "-S", "-E", str(GUARD_SCRIPT)]
    supervisor = await Supervisor.start(log=guard_log, command=command, env={})
    await supervisor.close()
    assert guard_log.read_text() == ""
