"""What measured: versions of the software and the make of the machine, for the record of a study."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

import optimizer
from optimizer.core.engine_config import JsonValue
from optimizer.engine.vllm.installation import VllmInstallation

_PACKAGES = ("aiohttp", "numpy", "optuna", "SQLAlchemy")


def software_versions(vllm: VllmInstallation | None) -> dict[str, str]:
    """Versions of what takes part in a measurement."""
    versions = {name.lower(): importlib.metadata.version(name) for name in _PACKAGES}
    versions |= {"vllm-autotune": optimizer.__version__, "python": platform.python_version()}
    if vllm is not None:
        versions |= {"vllm": vllm.version, "torch": vllm.torch_version, "engine-python": vllm.python_version}
    return versions


def describe_host() -> dict[str, JsonValue]:
    """Cores, memory, kernel and processor of this host."""
    return {
        "name": platform.node(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "allowed_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "kernel": platform.release(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
