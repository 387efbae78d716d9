"""An engine's log without what stands around its messages: process, level, time, stack frames."""

from __future__ import annotations

import re

_HEADER = re.compile(
    r"(?:\([\w -]+ pid=\d+\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::\s+| (?:\d\d-\d\d [\d:]+ \[[^\]\s]+\] ?)?))?"
)
"""vLLM writes `(EngineCore pid=12) ERROR 11-29 18:50:31 [core.py:1510] text`, uvicorn `INFO:     text`."""
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})
_FRAME = re.compile(
    r"\s*$|\s{4,}|\s*File \".*\", line \d+|\s*[\^~]+$|Traceback \(most recent|During handling of the above"
)
_EXCEPTION = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout)(?::\s.*)?")
_WRAPPER = re.compile(r"Engine core initialization failed|EngineDeadError|EngineGenerateError|Frontend process failed")
_WORKER_FAILED = re.compile(r"RuntimeError: Worker failed with error '(.*)', please check the stack trace above")
_ENGINE_FELL = re.compile(r"EngineCore (?:failed to start|encountered a fatal error)")
_MAX_CHARS = 400
_LAST_LINES = 5


def complaints(log: str) -> list[str]:
    """The messages that may say why an engine ended: headers and stack frames stripped, INFO and WARNING left out.

    A warning names failures that were got over ("Address already in use. Retrying with a new port.").
    """
    return [text for level, text in map(_split, log.splitlines()) if level not in _QUIET and not _FRAME.match(text)]


def last_lines(log: str) -> tuple[str, ...]:
    """The last lines of a log that are no stack frames, whatever their level; at most 400 characters of each."""
    lines = [text for _, text in map(_split, log.splitlines()) if not _FRAME.match(text)]
    return tuple(map(shortened, lines[-_LAST_LINES:]))


def root_exception(lines: list[str]) -> str | None:
    """The exception that ended the engine, told from those that only pass it on.

    Args:
        lines: From `complaints`.
    """
    fell = next((at for at, line in enumerate(lines) if _ENGINE_FELL.search(line)), None)
    after = [] if fell is None else lines[fell:]
    candidates = [line for line in after if _is_cause(line)] or [line for line in reversed(lines) if _is_cause(line)]
    if not candidates:
        return None
    passed_on = _WORKER_FAILED.match(candidates[0])
    return shortened(passed_on[1] if passed_on else candidates[0])


def shortened(line: str) -> str:
    """A line for the record."""
    return line.strip()[:_MAX_CHARS]


def _is_cause(line: str) -> bool:
    return _EXCEPTION.fullmatch(line) is not None and _WRAPPER.search(line) is None


def _split(line: str) -> tuple[str | None, str]:
    header = _HEADER.match(line)
    return (header["level"], line[header.end() :].rstrip()) if header else (None, line.rstrip())
