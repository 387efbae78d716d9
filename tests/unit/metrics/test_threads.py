"""CPU of threads of real processes, by role."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from optimizer.metrics import threads
from optimizer.metrics.threads import ThreadMeter, ThreadSnapshot, ThreadTimes, busiest

SERVER = """
import ctypes, os, subprocess, sys, threading, time

def named(name):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)

def spin():
    while True:
        pass

if len(sys.argv) > 1:
    named(sys.argv[1])
    def worker():
        named("hot thread)")
        spin() if "EngineCore" in sys.argv[1] or "python" in sys.argv[1] else time.sleep(60)
    threading.Thread(target=worker, daemon=True).start()
    os.write(1, b"up\\n")  # in one piece: the children share the pipe
    time.sleep(60)
children = [subprocess.Popen([sys.executable, "-c", open("/proc/self/cmdline").read().split(chr(0))[2], title])
            for title in NAMES]
time.sleep(60)
"""


def launched(*names: str) -> Iterator[int]:
    """The pid of a leader with one child for each name; each child has a thread that uses a core."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"NAMES = {names!r}\n{SERVER}"],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in names] == ["up\n"] * len(names)
        yield process.pid
    finally:
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=True)
        process.wait()
        process.stdout.close()


@pytest.fixture
def engine() -> Iterator[int]:
    yield from launched("VLLM::EngineCore_DP0", "VLLM::Worker_TP1", "resource_tracker")


@pytest.fixture
def crowded() -> Iterator[int]:
    yield from launched(*(f"VLLM::EngineCore_DP{rank}" for rank in range(3)))


@pytest.fixture
def untitled() -> Iterator[int]:
    yield from launched("python3")


def watched(pid: int) -> tuple[ThreadMeter, ThreadSnapshot, ThreadSnapshot, float]:
    """Two snapshots, between which a thread of the children used a tenth of a second: how long that takes depends on
    what else this host does. And the most cores that one thread can have used between them: a snapshot may take long,
    and the kernel counts a running thread's time tick by tick."""
    meter, begun_s = ThreadMeter(lambda: [pid], lambda: [os.getpid()]), time.monotonic()
    before = meter.read(time.monotonic, fresh=True)
    for _ in range(200):
        time.sleep(0.05)
        after = meter.read(time.monotonic)
        others = {key: now for key, now in after.threads.items() if key[0] not in (pid, os.getpid())}
        if any(now.cpu_s - before.threads[key].cpu_s > 0.1 for key, now in others.items()):
            return meter, before, after, (time.monotonic() - begun_s + 0.05) / (after.at_s - before.at_s)
    raise AssertionError("no thread of the children ran")


def test_each_role_has_its_busiest_thread_by_name(engine: int) -> None:
    meter, before, after, most_cores = watched(engine)
    roles = {use.role: use for use in meter.use(before, after)}
    assert set(roles) == {"api_server", "engine_core", "worker", "client", "other"}
    core = roles["engine_core"]
    assert core.busiest.process == "VLLM::EngineCor"
    assert core.busiest.thread == "hot thread)"
    assert 0.0 < core.busiest.cores <= most_cores
    assert core.cores >= core.busiest.cores
    assert roles["api_server"].busiest.thread == "main"
    assert roles["api_server"].cores < 0.05
    assert roles["client"].busiest.pid == os.getpid()
    assert meter.allowed_cpus() == len(os.sched_getaffinity(0))


def test_a_core_that_is_fought_for_shows_as_waiting(crowded: int) -> None:
    """Three threads that spin on one core get a third of it each, at most, and wait for the rest."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel keeps no schedstat")
    one = {min(os.sched_getaffinity(0))}
    for child in Path(f"/proc/{crowded}/task/{crowded}/children").read_text().split():
        for thread in Path(f"/proc/{child}/task").iterdir():
            os.sched_setaffinity(int(thread.name), one)
    meter, before, after, most_cores = watched(crowded)
    hot = busiest(meter.use(before, after), "engine_core")
    assert hot is not None
    assert hot.waiting is not None
    assert hot.waiting > 0.2
    assert hot.cores + hot.waiting <= most_cores


def test_without_titles_the_leaders_child_is_taken_for_engine_core(untitled: int) -> None:
    meter, before, after, _ = watched(untitled)
    assert {use.role for use in meter.use(before, after)} == {"api_server", "engine_core", "client"}


def test_ticks_are_read_where_the_kernel_keeps_no_schedstat(engine: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = threads._text
    monkeypatch.setattr(threads, "_text", lambda path: "" if path.endswith("schedstat") else plain(path))
    meter, before, after, most_cores = watched(engine)
    hot = busiest(meter.use(before, after), "engine_core")
    assert hot is not None
    assert 0.0 < hot.cores <= most_cores
    assert hot.waiting is None


def test_a_process_that_was_not_known_before_counts_with_nothing() -> None:
    meter = ThreadMeter(list, lambda: [os.getpid()])
    now = meter.read(time.monotonic, fresh=True)
    unseen = ThreadSnapshot(now.at_s - 1.0, {})
    assert meter.use(unseen, now) == ()
    assert meter.use(now, now) == ()


def test_a_thread_born_within_counts_from_its_birth() -> None:
    pid = os.getpid()
    meter = ThreadMeter(list, lambda: [pid])
    meter.read(time.monotonic, fresh=True)
    before = ThreadSnapshot(0.0, {(pid, pid): ThreadTimes(5.0, None)})
    after = ThreadSnapshot(2.0, {(pid, pid): ThreadTimes(5.2, None), (pid, 1): ThreadTimes(1.0, None)})
    (client,) = meter.use(before, after)
    assert client.cores == pytest.approx(0.6)
    assert client.busiest.cores == pytest.approx(0.5)
    assert client.busiest.thread == "thread 1"


def test_load_processes_of_ours_are_the_client_and_the_engines_guard_is_not(untitled: int) -> None:
    """The leader is a child of this process, as the guard is, and so is a load process."""
    load = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1)
    with load:
        assert load.stdout is not None
        assert load.stdout.readline() == b"up\n"
        others = [child.pid for child in psutil.Process().children() if child.pid not in (untitled, load.pid)]
        meter = ThreadMeter(lambda: [untitled])
        before = meter.read(time.monotonic, fresh=True)
        time.sleep(0.01)
        roles = {use.role: use for use in meter.use(before, meter.read(time.monotonic))}
        load.communicate(b"\n")
    assert roles["client"].processes == 2 + len(others)
    assert roles["engine_core"].processes == 1


def test_what_is_gone_has_no_role() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    meter = ThreadMeter(lambda: [gone.pid], list)
    snapshot = meter.read(time.monotonic, fresh=True)
    assert (dict(snapshot.threads), meter.allowed_cpus()) == ({}, None)
    assert busiest((), "client") is None
