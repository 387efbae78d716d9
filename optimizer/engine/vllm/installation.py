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
from optimizer.engine.vllm.inside import whereabouts

_ANSWER_LIMIT_S = 60.0
_GIVE_PYTHON = "give the Python that has vLLM installed"
_SCRIPT = Path(whereabouts.__file__)


@dataclass(frozen=True, slots=True)
class VllmInstallation:
    """A Python that can run vLLM, and its versions.

    Attributes:
        python: Path of the Python.
        version: Of vLLM.
        torch_version: `unknown` where there is no torch.
        python_version: Of the Python.
        stamp: Changes when vLLM is installed anew, or its sources are edited.
    """

    python: str
    version: str
    torch_version: str
    python_version: str
    stamp: str = ""


def find_vllm(engine_python: str | None) -> VllmInstallation:
    """Ask a Python (ours by default) for its vLLM.

    Raises:
        HostError: There is no such Python, or it has no vLLM.
    """
    python = engine_python or sys.executable
    origin = "--engine-python" if engine_python else "this Python"
    if shutil.which(python) is None:
        raise HostError(f"{origin}: {python} is not an executable program", hint=_GIVE_PYTHON)
    answer = whereabouts.whereabouts() if engine_python is None else _ask(python, origin)
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
        stamp=answer["stamp"],
    )


def _ask(python: str, origin: str) -> dict[str, Any]:
    """What the script says: the last line, since a Python may greet on stdout before it answers."""
    try:
        done = subprocess.run(
            [python, str(_SCRIPT)], capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{origin}: {python} does not run as Python: {error}", hint=_GIVE_PYTHON) from error
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or [f"no answer, exit code {done.returncode}"]
        raise HostError(f"{origin}: {python} does not run as Python: {last[0]}", hint=_GIVE_PYTHON) from None
