"""What happens on an exception that nobody expected: a short text, the traceback in a file, exit code 1."""

from __future__ import annotations

import sys
import tempfile
import traceback
from types import TracebackType

from optimizer.cli.console import show_error
from optimizer.core.errors import AutotuneError
from optimizer.report.secrets import hide_secrets


def install_fault_report() -> None:
    """Makes the interpreter report uncaught exceptions in our way; it exits with 1 by itself afterwards."""
    sys.excepthook = report_fault


def report_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the traceback, secrets masked, to a file in the temporary folder and says where it is."""
    if issubclass(kind, KeyboardInterrupt):
        # Before or after a command; the interpreter ends with 130 by itself.
        return
    text = hide_secrets("".join(traceback.format_exception(kind, error, trace)))
    summary = " ".join(f"{kind.__name__}: {error}".split())
    try:
        place = f"please report it with the traceback in {_write_traceback(text)}"
    except OSError as problem:
        place = f"the traceback could not be written: {problem}"
    show_error(AutotuneError(f"this is a fault of vllm-autotune, not yours: {summary}", hint=place))


def _write_traceback(text: str) -> str:
    with tempfile.NamedTemporaryFile(
        "w", prefix="vllm-autotune-fault-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return file.name
