"""How much memory vLLM takes its fraction of, when it runs on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def engine_memory_bytes() -> int:
    """Total memory that vLLM's CPU worker multiplies `--gpu-memory-utilization` with.

    That is the total of the NUMA node of the first allowed core, clamped to the cgroup's limit
    (`vllm/utils/cpu_resource_utils.py`, `get_memory_node_info`). On a virtual machine whose memory is plugged in as
    it is used the figure grows, so it is read anew before each launch.
    """
    total = _node_total_bytes(min(os.sched_getaffinity(0)))
    limit = _cgroup_limit_bytes()
    return min(total, limit) if limit is not None else total


def _node_total_bytes(cpu: int) -> int:
    for node in Path("/sys/devices/system/node").glob("node[0-9]*"):
        if (node / f"cpu{cpu}").exists():
            for line in (node / "meminfo").read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[2] == "MemTotal:":
                    return int(fields[3]) * 1024
    return int(psutil.virtual_memory().total)


def _cgroup_limit_bytes() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        file = Path(path)
        if file.exists():
            text = file.read_text(encoding="ascii").strip()
            return None if text == "max" else int(text)
    return None
