"""The memory that vLLM's CPU worker takes its fraction of, read from an invented /sys."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from optimizer.host.memory import engine_memory_bytes

GIB = 1024**3
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two nodes: cores 0 and 1 with 8 GiB, cores 2 and 3 with 4 GiB; no cgroup."""
    for node, cores, gib in ((0, (0, 1), 8), (1, (2, 3), 4)):
        folder = tmp_path / f"devices/system/node/node{node}"
        for core in cores:
            (folder / f"cpu{core}").mkdir(parents=True)
        lines = [f"Node {node} MemTotal:       {gib * 1024**2} kB", f"Node {node} MemFree:        1024 kB"]
        (folder / "meminfo").write_text("\n".join(lines) + "\n")
    (tmp_path / "fs/cgroup/memory").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("allowed", "gib"), [({0, 1, 2, 3}, 8), ({1}, 8), ({2, 3}, 4)])
def test_the_node_of_the_first_allowed_core_counts(monkeypatch, sysfs, allowed, gib):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)
    assert engine_memory_bytes(sysfs) == gib * GIB


@pytest.mark.parametrize(
    ("v2", "v1", "gib"),
    [
        (f"{2 * GIB}\n", None, 2),
        (f"{64 * GIB}\n", None, 8),
        ("max\n", None, 8),
        (None, f"{3 * GIB}\n", 3),
        (None, f"{UNLIMITED_V1}\n", 8),
        ("max\n", f"{3 * GIB}\n", 3),
    ],
)
def test_a_cgroups_limit_clamps_it(monkeypatch, sysfs, v2, v1, gib):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    for name, text in (("fs/cgroup/memory.max", v2), ("fs/cgroup/memory/memory.limit_in_bytes", v1)):
        if text is not None:
            (sysfs / name).write_text(text)
    assert engine_memory_bytes(sysfs) == gib * GIB


def test_a_host_without_nodes_has_all_its_memory(tmp_path):
    assert engine_memory_bytes(tmp_path) == psutil.virtual_memory().total


def test_this_host_has_some():
    assert 2**28 < engine_memory_bytes() <= psutil.virtual_memory().total * 1.01
