"""What an external evaluator left in the trial's folder, and the failures that are told from it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.host.files import keep_file
from optimizer.tuning.evaluator_protocol import plain

REQUEST = "evaluator_request.json"
STDOUT = "evaluator_stdout.log"
STDERR = "evaluator_stderr.log"
STREAMS = {"stdout": STDOUT, "stderr": STDERR}
_TAIL_BYTES = 2**20
"""An answer has a few kilobytes."""
_EVIDENCE_LINES = 5


def write_file(path: Path, text: str) -> None:
    """Write a small file of an attempt.

    Raises:
        HostError: The disk is full or the folder is gone.
    """
    keep_file(path, lambda to: to.write_text(text, encoding="utf-8"))


def size_bytes(path: Path) -> int:
    """Size of a file; 0 when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def cut(path: Path, limit_bytes: int) -> None:
    """Keep the beginning of a file that is longer."""
    if size_bytes(path) > limit_bytes:
        os.truncate(path, limit_bytes)


def last_line(path: Path) -> str | None:
    """The last line of a file that is not blank; None when there is none."""
    lines = _last_lines(path, 1)
    return lines[0] if lines else None


def died(folder: Path, exit_code: int) -> Failure:
    """The evaluator ended otherwise than with exit status 0. That says nothing of the setting."""
    how = f"exit status {exit_code}" if exit_code >= 0 else f"signal {_signal_name(-exit_code)}"
    return _host_fault(f"the evaluator died: {how}", folder, exit_code=exit_code)


def made_no_sense(folder: Path, why: str) -> Failure:
    """It ended well, and its last line is no answer."""
    return _host_fault(f"the evaluator gave no answer: {why}", folder, exit_code=0)


def printed_too_much(folder: Path, stream: str, limit_bytes: int) -> Failure:
    """It was ended for the sake of the disk."""
    return _host_fault(f"the evaluator printed more than {limit_bytes / 2**20:g} MiB on {stream}", folder)


def hangs(folder: Path, timeout_s: float) -> Failure:
    """It was ended for taking too long. As a rule an engine behind it hangs, or serves so slowly; it is asked twice."""
    return Failure(
        kind=FailureKind.LOAD_TIMEOUT,
        stage=Stage.MEASURING,
        blame=Blame.CONFIG,
        detail=f"the evaluator had not ended after {timeout_s:g} s",
        evidence=evidence(folder),
        retryable=True,
    )


def evidence(folder: Path) -> tuple[str, ...]:
    """The last lines of stderr, or of stdout where there are none: the very last first, for it tells most."""
    lines = _last_lines(folder / STDERR, _EVIDENCE_LINES) or _last_lines(folder / STDOUT, _EVIDENCE_LINES)
    return tuple(map(plain, (*lines[-1:], *lines[:-1])))


def _host_fault(detail: str, folder: Path, *, exit_code: int | None = None) -> Failure:
    return Failure(
        kind=FailureKind.HOST_FAULT,
        stage=Stage.MEASURING,
        blame=Blame.HOST,
        detail=detail,
        evidence=evidence(folder),
        exit_code=exit_code,
        retryable=True,
    )


def _last_lines(path: Path, count: int) -> list[str]:
    """Of the last megabyte of a file; none when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, size_bytes(path) - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    # Not `splitlines`: JSON may hold U+2028 and its like within a line.
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()][-count:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)
