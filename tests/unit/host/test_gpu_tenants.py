"""Who is on a card: ours by descent or by mark, others by name."""

from __future__ import annotations

import os
import subprocess
import sys

from optimizer.host.gpu_tenants import CardLook, look_at, process_words, processes_of
from optimizer.host.gpus import GpuProcess, GpuReading
from tests.gpu.fake_nvml import GIB, card, tells


def test_the_processes_of_a_reading_are_told_apart():
    reading = GpuReading(9 * GIB, (GpuProcess(1, 4 * GIB), GpuProcess(2, 3 * GIB), GpuProcess(3, None)))
    look = look_at(card(), reading, tells(1))
    assert look.ours == (GpuProcess(1, 4 * GIB),)
    assert look.others == (GpuProcess(2, 3 * GIB), GpuProcess(3, None))
    assert (look.used_bytes, look.others_bytes) == (9 * GIB, 3 * GIB)


def test_children_are_ours_and_this_process_too_and_init_is_not():
    with subprocess.Popen(["sleep", "60"]) as child:
        assert processes_of("NO_SUCH_MARK", "x/")([os.getpid(), child.pid, 1]) == {os.getpid(), child.pid}
        child.kill()


def test_an_orphan_is_ours_by_its_mark_alone():
    """Its parent is gone, so it descends from nobody of ours."""
    script = "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
    env = {**os.environ, "MARK_OF_TEST": "mine/3/1"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True, text=True)
    orphan = int(done.stdout)
    try:
        assert processes_of("MARK_OF_TEST", "mine/")([orphan]) == {orphan}
        assert processes_of("MARK_OF_TEST", "min/")([orphan]) == frozenset()
    finally:
        os.kill(orphan, 9)


def test_a_pid_that_nobody_has_is_not_ours():
    assert processes_of("M", "x/")([2**22 + 1]) == frozenset()


def test_a_process_in_words():
    assert process_words(GpuProcess(os.getpid(), 41 * GIB)).startswith(f"pid {os.getpid()} (")
    assert process_words(GpuProcess(os.getpid(), 41 * GIB)).endswith(" holds 41.0 GiB")
    assert (
        process_words(GpuProcess(2**22 + 1, None)) == f"pid {2**22 + 1} (not visible from here) holds an unknown amount"
    )


def test_tenants_that_are_not_listed_are_told_as_such():
    assert "no process is listed" in CardLook(card(), 5 * GIB).tenants[0]
    assert "GPU 0 (NVIDIA H200): pid 4" in CardLook(card(), 5 * GIB, others=(GpuProcess(4, 1),)).tenants[0]
