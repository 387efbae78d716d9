"""Which processes are an engine's, however they hide; and that no other is ever signalled."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from optimizer.host.guard import (
    MARK_VARIABLE,
    ProcessKey,
    Seen,
    end,
    environment_of,
    look,
    processes_of_engine,
    send,
    start_ticks,
)
from optimizer.host.processes import TRIAL_VARIABLE, identity_of, is_alive, name_processes, our_processes
from tests.integration.supervision.helpers import LIMIT_S, family, has_become, logged
from tests.waiting import until

NOBODY = ProcessKey(os.getpid(), 1)
"""A guard that is dead: this pid is another process's by now."""
MARK = "feedbeef"
DEAF_DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print("daemon", os.getpid(), "up", flush=True)
time.sleep(600)
"""
FORKING = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        time.sleep(600)
print("up", flush=True)
os._exit(0)
"""
ASLEEP = "print('up', flush=True); import time; time.sleep(600)"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs that are nobody's but the test's, and returns once they are up."""
    started: list[subprocess.Popen[bytes]] = []

    def starting(script: str = ASLEEP, *, mark: str | None = None, **options: Any) -> subprocess.Popen[bytes]:
        env = {"PATH": "/usr/bin:/bin", **({} if mark is None else {MARK_VARIABLE: mark, TRIAL_VARIABLE: "s/4/1"})}
        process = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, **options)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"up\n")
        return process

    yield starting
    for process in started:
        for one in _whole(process):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.communicate()


def _whole(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    return []


def key_of(process: subprocess.Popen[bytes]) -> ProcessKey:
    return ProcessKey(process.pid, start_ticks(process.pid))


def pids(found: list[Seen]) -> set[int]:
    return {process.pid for process in found}


# --- under a guard


async def test_a_deaf_daemon_in_a_session_of_its_own_is_swept(spawn, supervisor, tmp_path):
    process = await spawn("", argv=[sys.executable, "-c", DEAF_DAEMON])
    await logged(tmp_path / "engine.log", "up")
    daemon = identity_of(int((tmp_path / "engine.log").read_text().split()[1]))
    assert os.getsid(daemon.pid) != process.identity.pid
    assert await process.exited == 0
    while psutil.Process(daemon.pid).ppid() != supervisor._process.pid:  # noqa: ASYNC110 (its parent may still be about)
        await asyncio.sleep(0.01)
    report = await process.stop(grace_s=LIMIT_S)
    assert (report.killed, report.left) == ((daemon.pid,), ())
    assert not is_alive(daemon)


async def test_children_of_a_leader_that_left_at_once_are_swept(spawn, supervisor, tmp_path):
    process = await spawn("", argv=[sys.executable, "-c", FORKING])
    await logged(tmp_path / "engine.log", "up")
    assert await process.exited == 0
    children = [identity_of(child.pid) for child in psutil.Process(supervisor._process.pid).children()]
    assert len(children) == 3
    report = await process.stop(grace_s=LIMIT_S)
    assert (report.exit_code, report.left) == (0, ())
    assert report.term_s < LIMIT_S / 3
    assert not any(is_alive(child) for child in children)


async def test_a_stop_leaves_a_foreign_process_of_the_same_name_alone(spawn, start):
    foreign = start()
    process = await spawn("", argv=[sys.executable, "-c", ASLEEP])
    assert (await process.stop(grace_s=LIMIT_S)).left == ()
    assert foreign.poll() is None


async def test_everything_of_ours_can_be_listed_and_nothing_else(spawn, supervisor, start):
    start(mark="")
    process = await spawn("sleep 60 & echo up; wait", env={"PATH": "/usr/bin:/bin", TRIAL_VARIABLE: "study/3/1"})
    members = {member.pid for member in family(process.identity.pid)}
    (sleeper,) = members - {process.identity.pid}
    await has_become(sleeper, "sleep")
    mark = supervisor._entry.mark
    listed = our_processes(mark)
    assert {one.pid for one in listed} == members | {supervisor._process.pid}
    assert {one.trial for one in listed if one.pid in members} == {"study/3/1"}
    assert {one.mark for one in listed} == {mark}
    assert {one.pid for one in our_processes()} >= members
    assert our_processes("0" * 12) == []
    await process.stop(grace_s=LIMIT_S)
    assert [one.pid for one in our_processes(mark)] == [supervisor._process.pid]


# --- after the guard is gone


def test_what_carries_the_mark_is_ours_with_all_below_it(start):
    hidden = start(
        "import subprocess, sys\n" + f"subprocess.run([sys.executable, '-c', {ASLEEP!r}], env={{}})", mark=MARK
    )
    (below,) = psutil.Process(hidden.pid).children()
    assert environment_of(below.pid) == {}
    start(mark="feedbee0")
    start()
    found = processes_of_engine(NOBODY, None, MARK)
    assert pids(found) == {hidden.pid, below.pid}
    assert name_processes(found[:1]).startswith(f"{found[0].pid} (python")


def test_the_session_of_a_living_leader_is_ours_though_nothing_carries_the_mark(start):
    leader = start(
        "import os, subprocess, sys\n"
        "if os.fork() == 0:\n"
        f"    subprocess.Popen([sys.executable, '-c', {ASLEEP!r}], env={{}})\n"
        "    os._exit(0)\n"
        "os.wait()\nimport time; time.sleep(600)",
        start_new_session=True,
    )
    until(lambda: not psutil.Process(leader.pid).children())
    found = processes_of_engine(NOBODY, key_of(leader), MARK)
    (orphan,) = pids(found) - {leader.pid}
    assert psutil.Process(orphan).ppid() != leader.pid
    assert os.getsid(orphan) == leader.pid
    leader_alone = ProcessKey(leader.pid, start_ticks(leader.pid) - 1)
    assert processes_of_engine(NOBODY, leader_alone, MARK) == [], "another process had that pid and session before"
    os.kill(orphan, signal.SIGKILL)


def test_a_process_older_than_the_guard_is_not_ours_whatever_it_carries(start):
    old = start(mark=MARK)
    assert processes_of_engine(ProcessKey(1 << 22, start_ticks(old.pid) + 1), None, MARK) == []
    assert pids(processes_of_engine(ProcessKey(1 << 22, start_ticks(old.pid)), None, MARK)) == {old.pid}


def test_without_a_mark_nothing_is_looked_for_by_it(start):
    start(mark="")
    assert processes_of_engine(NOBODY, None, "") == []


def test_a_signal_meets_that_very_process_or_nobody(start):
    process = start()
    seen = look(process.pid)
    assert seen is not None
    send(seen._replace(start_ticks=seen.start_ticks + 1), signal.SIGKILL)
    assert process.poll() is None
    send(seen, signal.SIGKILL)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    send(seen, signal.SIGKILL)


def test_what_cannot_be_ended_is_reported_after_a_bounded_time(start):
    process = start(start_new_session=True)
    seen = look(process.pid)
    assert seen is not None
    stubborn = seen._replace(start_ticks=seen.start_ticks + 1, group=1 << 22)
    begun_s = time.monotonic()
    ended = end(lambda: [stubborn], None, 0.1)
    assert time.monotonic() - begun_s < LIMIT_S / 3
    assert (ended.killed, ended.left) == ([stubborn], [stubborn])
    assert process.poll() is None


def test_what_was_found_once_is_ended_though_it_shows_its_mark_no_more(start):
    """A process that is ending has no environment any more, and holds the GPU's memory still."""
    process = start(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    seen = look(process.pid)
    assert seen is not None
    looks = itertools.chain([[seen]], itertools.repeat([]))
    ended = end(lambda: next(looks), None, 0.1)
    assert (ended.killed, ended.left) == ([seen], [])
    assert look(process.pid) is None


def test_the_whole_group_is_killed_in_one_step_though_one_member_was_seen(start):
    leader = start(
        "import os, time\nif os.fork():\n    print('up', flush=True)\ntime.sleep(600)",
        start_new_session=True,
    )
    (child,) = family(leader.pid)[1:]
    seen = look(leader.pid)
    assert seen is not None
    looks = itertools.chain([[seen], [seen]], itertools.repeat([]))
    end(lambda: next(looks), ProcessKey(leader.pid, 1), 0.0)
    assert leader.wait(LIMIT_S) == -signal.SIGKILL
    until(lambda: not is_alive(child))


def test_a_zombie_is_gone_but_not_while_a_thread_of_it_lives(start):
    zombie = start("print('up', flush=True)")
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert look(zombie.pid) is None
    threaded = start(
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    until(lambda: psutil.Process(threaded.pid).status() == psutil.STATUS_ZOMBIE)
    seen = look(threaded.pid)
    assert seen is not None
    assert seen.pid == threaded.pid
    send(seen, signal.SIGKILL)
    assert threaded.wait(LIMIT_S) == -signal.SIGKILL
