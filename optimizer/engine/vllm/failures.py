"""From an engine's last words to a `Failure`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.vllm.failure_texts import CAUSES, ENDS, REFUSALS, START_CAUSES, FailureText
from optimizer.engine.vllm.log_lines import complaints, last_lines, root_exception, shortened


def classify(log: str, *, stage: Stage, exit_code: int | None) -> Failure:
    """Say what went wrong from the engine's log.

    Args:
        log: The log, or its last part.
        stage: Where in the trial the engine ended. One that was ready once has not refused its settings, whatever
            its log says of single requests.
        exit_code: Of its leader; the API server exits 0 when its engine dies, so the code alone tells nothing.

    Returns:
        The failure with its evidence; kind UNKNOWN, with the last lines, when no known text stands in the log.
    """
    lines = complaints(log)
    message = "\n".join(lines)
    starting = stage is Stage.LAUNCHING
    found = _earliest((*START_CAUSES, *CAUSES) if starting else CAUSES, message)
    if found is None and starting:
        found = _foremost(REFUSALS, message)
    if found is not None:
        return _failure(*found, stage, exit_code, cause=None)
    cause = root_exception(lines)
    ended = _foremost(ENDS, message)
    if ended is not None:
        return _failure(*ended, stage, exit_code, cause=cause)
    because = "for a reason its log does not name in known words" if cause is None else f"with {cause}"
    return Failure(
        kind=FailureKind.UNKNOWN,
        stage=stage,
        blame=Blame.CONFIG,
        detail=f"the engine ended {because}",
        evidence=_without_repeats([cause or "", *last_lines(log)]),
        exit_code=exit_code,
        retryable=True,
    )


_Found = tuple[FailureText, re.Match[str]]


def _earliest(texts: Iterable[FailureText], message: str) -> _Found | None:
    """The one that the log says first: what comes later follows from it."""
    found = [(text, match) for text in texts if (match := text.regex.search(message))]
    return min(found, key=lambda one: one[1].start(), default=None)


def _foremost(texts: Iterable[FailureText], message: str) -> _Found | None:
    """The first of `texts` that the log holds anywhere."""
    return next(((text, match) for text in texts if (match := text.regex.search(message))), None)


def _failure(
    text: FailureText, match: re.Match[str], stage: Stage, exit_code: int | None, *, cause: str | None
) -> Failure:
    groups = tuple(group or "" for group in match.groups())
    detail = text.detail.format(*(shortened(group) for group in groups))
    return Failure(
        kind=text.kind,
        stage=stage,
        blame=text.blame,
        detail=detail if cause is None else f"{detail}: {cause}",
        evidence=_without_repeats([cause or "", *_whole_lines(match)]),
        exit_code=exit_code,
        violation=text.violation(*groups) if text.violation else None,
        retryable=text.retryable,
    )


def _whole_lines(match: re.Match[str]) -> list[str]:
    start = match.string.rfind("\n", 0, match.start()) + 1
    end = match.string.find("\n", match.end())
    return match.string[start : end if end >= 0 else None].splitlines()


def _without_repeats(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for line in map(shortened, lines) if line))
