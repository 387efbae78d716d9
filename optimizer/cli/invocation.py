"""How this program was started, so that what it tells a person to type works for that person."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from optimizer.report.secrets import hide_argument_secrets


def program() -> str:
    """`vllm-autotune`, or `python -m optimizer` when it was started that way."""
    return "python -m optimizer" if Path(sys.argv[0]).name == "__main__.py" else "vllm-autotune"


def this_command() -> str:
    """The command that runs now, ready to paste, secrets masked."""
    return f"{program()} {shlex.join(hide_argument_secrets(sys.argv[1:]))}"
