"""How much memory vLLM takes its fraction of, when it runs on the CPU.

As vLLM does, this asks the root of the cgroups for a limit; what is left (`memory_left`) is asked of our own cgroup.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from optimizer.host.kernel_files import CGROUP_V1, CGROUP_V2, SYSFS, memory_limit_bytes


def engine_memory_bytes(sysfs: Path = SYSFS, *, core: int | None = None) -> int:
    """Total memory that vLLM's CPU worker multiplies `--gpu-memory-utilization` with.

    That is the total of the NUMA node of the engine's first core, clamped to the cgroup's limit
    (`vllm/utils/cpu_resource_utils.py`, `get_memory_node_info`). On a virtual machine whose memory is plugged in as
    it is used the figure grows, so it is read anew before each launch.

    Args:
        sysfs: Where the kernel's sysfs is mounted.
        core: The engine's first core; None stands for the first that this process is allowed.
    """
    total = _node_total_bytes(sysfs, min(os.sched_getaffinity(0)) if core is None else core)
    limits = [memory_limit_bytes(sysfs / root) for root in (CGROUP_V2, CGROUP_V1)]
    limit = next((limit for limit in limits if limit is not None), total)
    return min(total, limit)


def _node_total_bytes(sysfs: Path, cpu: int) -> int:
    for node in (sysfs / "devices/system/node").glob("node[0-9]*"):
        if (node / f"cpu{cpu}").exists():
            for line in (node / "meminfo").read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[2] == "MemTotal:":
                    return int(fields[3]) * 1024
    return int(psutil.virtual_memory().total)
