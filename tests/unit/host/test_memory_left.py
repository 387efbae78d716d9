"""Memory that is left and the kernel's kills, read from an invented /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.host.memory_left import MemoryLeft, memory_left

GIB = 1024**3
NO_LIMIT_V1 = str(2**63 - 4096)


class Kernel:
    """What a kernel shows of its memory; 16 GiB are available on the host and 7 processes were killed there."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sysfs = folder / "proc", folder / "sys"
        self.write(self.proc / "meminfo", f"MemTotal: {64 * 1024**2} kB\nMemAvailable:   {16 * 1024**2} kB\n")
        self.write(self.proc / "vmstat", "nr_free_pages 12\noom_kill 7\n")

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def own_cgroups(self, *lines: str) -> None:
        self.write(self.proc / "self/cgroup", "".join(f"{line}\n" for line in lines))

    def v2(self, path: str, *, limit: str = "max", used: int = 0, kills: int = 0) -> None:
        folder = self.sysfs / "fs/cgroup" / path
        self.write(folder / "memory.events", f"low 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n")
        self.write(folder / "memory.max", f"{limit}\n")
        self.write(folder / "memory.current", f"{used}\n")
        self.write(folder / "memory.stat", f"anon 5\ninactive_file {GIB}\n")

    def v1(self, path: str, *, limit: str, used: int, kills: int) -> None:
        folder = self.sysfs / "fs/cgroup/memory" / path
        self.write(folder / "memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        self.write(folder / "memory.limit_in_bytes", f"{limit}\n")
        self.write(folder / "memory.usage_in_bytes", f"{used}\n")
        self.write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}\n")

    def left(self) -> MemoryLeft:
        return memory_left(self.proc, self.sysfs)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_without_a_cgroup_the_host_counts(kernel):
    assert kernel.left() == MemoryLeft(16 * GIB, 7)


def test_a_cgroup_of_our_own_counts_its_own_kills(kernel):
    kernel.own_cgroups("0::/user.slice/run.scope")
    kernel.v2("user.slice/run.scope", kills=2)
    assert kernel.left() == MemoryLeft(16 * GIB, 2)


def test_in_a_container_the_root_of_the_hierarchy_is_ours(kernel):
    kernel.own_cgroups("12:pids:/docker/abc", "0::/../../docker/abc")
    kernel.v2("", limit=str(8 * GIB), used=6 * GIB, kills=1)
    assert kernel.left() == MemoryLeft(3 * GIB, 1), "file pages that may be dropped are free"


def test_cgroup_1_counts_as_well(kernel):
    kernel.own_cgroups("9:name=systemd:/", "4:cpu,memory:/pod/7", "0::/")
    kernel.v1("pod/7", limit=str(8 * GIB), used=8 * GIB, kills=5)
    assert kernel.left() == MemoryLeft(GIB, 5)


def test_a_cgroup_without_a_limit_leaves_what_the_host_has(kernel):
    kernel.own_cgroups("4:memory:/pod/7")
    kernel.v1("pod/7", limit=NO_LIMIT_V1, used=8 * GIB, kills=0)
    assert kernel.left() == MemoryLeft(16 * GIB, 0)


def test_a_cgroup_that_is_over_its_limit_leaves_nothing(kernel):
    kernel.own_cgroups("0::/pod")
    kernel.v2("pod", limit=str(GIB), used=3 * GIB)
    assert kernel.left().available_bytes == 0


def test_a_kernel_that_does_not_count_kills_says_nothing_of_them(kernel):
    (kernel.proc / "vmstat").write_text("nr_free_pages 12\n")
    assert kernel.left().oom_kills is None
    kernel.own_cgroups("4:memory:/pod")
    kernel.write(kernel.sysfs / "fs/cgroup/memory/pod/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
    assert kernel.left().oom_kills is None


def test_this_host_tells():
    found = memory_left()
    assert found.available_bytes > 2**26
    assert found.oom_kills is not None
