"""An engine's log without what stands around its messages: process, level, time, stack frames."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
_WRAPPER = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineGenerateError|Frontend process failed"
    r"|Engine core process \S+ died unexpectedly"
)
_WORKER_FAILED = re.compile(r"RuntimeError: Worker failed with error '(.*)', please check the stack trace above")
_ENGINE_FELL = re.compile(r"EngineCore (?:failed to start|encountered a fatal error)")
_SERVED = re.compile(r"\S+ - \"[A-Z]+ \S+ HTTP/[\d.]+\" 200")
"""A line of uvicorn's access log."""
_MAX_CHARS = 400
_MAX_LINE_CHARS = 4096
"""What is looked at of one line; vLLM's own longest, the repeated configuration, has about 3000."""
_LAST_LINES = 5


def complaints(log: str) -> list[str]:
    """The messages that may say why an engine ended: headers and stack frames stripped, INFO and WARNING left out.

    A warning names failures that were got over ("Address already in use. Retrying with a new port.").
    """
    return [text for level, text in _split_all(log) if level not in _QUIET and not _FRAME.match(text)]


def messages(log: str) -> list[str]:
    """All messages, whatever their level, without stack frames."""
    return [text for _, text in _split_all(log) if not _FRAME.match(text)]


def last_lines(log: str) -> tuple[str, ...]:
    """The last lines of a log that say something, whatever their level: no stack frames, no answers that went well.

    At most 400 characters of each.
    """
    lines = [line for line in messages(log) if not _SERVED.match(line)]
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


def _split_all(log: str) -> Iterator[tuple[str | None, str]]:
    return (_split(line[:_MAX_LINE_CHARS]) for line in log.splitlines())


def _split(line: str) -> tuple[str | None, str]:
    header = _HEADER.match(line)
    return (header["level"], line[header.end() :].rstrip()) if header else (None, line.rstrip())
