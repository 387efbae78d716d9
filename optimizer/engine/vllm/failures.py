"""From an engine's last words to a `Failure`."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.memory_kill import MemoryKill
from optimizer.engine.vllm.failure_texts import CAUSES, ENDS, REFUSALS, START_CAUSES, FailureText
from optimizer.engine.vllm.log_lines import complaints, last_lines, messages, root_exception, shortened
from optimizer.engine.vllm.memory_phase import memory_phase

_NUMBER = re.compile(r"(-?\d+\.?\d*)(?: (\w+))?")
_WORDS = frozenset({"said", "field"})
_GIB_OF_UNIT = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
_OF_OTHERS = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Signals by which a person or a supervisor ends an engine; it never sends them to its own leader. Others, such as
SIGSEGV, are its own doing."""


def classify(log: str, *, stage: Stage, exit_code: int | None, memory_kill: MemoryKill | None = None) -> Failure:
    """Say what went wrong from the engine's log.

    Args:
        log: The log, or its first and last parts.
        stage: Where in the trial the engine ended. One that was ready once has not refused its settings, whatever
            its log says of single requests.
        exit_code: Of its leader; the API server exits 0 when its engine dies, so the code alone tells nothing. Only
            a signal, which is not ours, is a cause of its own.
        memory_kill: What the kernel killed for want of memory while the engine lived. It explains every end for which
            the log has no known words: what other processes log of the killed one's end is no cause.

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
        return found.failure(log, stage, exit_code)
    cause = root_exception(lines)
    if memory_kill is not None:
        return _killed_for_memory(memory_kill, log, stage, exit_code, cause)
    ended = _foremost(ENDS, message) or _foremost(ENDS, "\n".join(messages(log)))
    if ended is not None:
        return ended.failure(log, stage, exit_code, cause=cause)
    return _unnamed_end(log, stage, exit_code, cause)


@dataclass(frozen=True, slots=True)
class _Found:
    """A text in the log, and the numbers it states."""

    text: FailureText
    match: re.Match[str]
    facts: Mapping[str, float]

    def failure(self, log: str, stage: Stage, exit_code: int | None, *, cause: str | None = None) -> Failure:
        text, groups = self.text, self.match.groupdict(default="")
        detail = text.detail.format(**{name: shortened(group) for name, group in groups.items()})
        out_of_memory = text.kind is FailureKind.OUT_OF_MEMORY
        # An end without a cause is a process killed from outside: it may go well another time.
        killed = text in ENDS and text.kind is FailureKind.ENGINE_CRASH and cause is None
        return Failure(
            kind=text.kind,
            stage=stage,
            blame=text.blame,
            detail=detail if cause is None else f"{detail}: {cause}",
            evidence=_without_repeats([cause or "", *_whole_lines(self.match)]),
            exit_code=exit_code,
            violation=text.violation(self.facts) if text.violation else None,
            retryable=text.retryable or killed,
            phase=text.phase or memory_phase(log, stage) if out_of_memory else None,
            facts=self.facts,
        )


def _killed_for_memory(kill: MemoryKill, log: str, stage: Stage, exit_code: int | None, cause: str | None) -> Failure:
    """The setting is to blame when the engine had the memory that engines have here, and wanted more."""
    left_gib, usual_gib = (size * _GIB_OF_UNIT["bytes"] for size in (kill.left_bytes, kill.usual_bytes))
    found = f"without it {left_gib:.1f} GiB are left, {usual_gib:.1f} were before a launch"
    counted = f"the kernel's count of such kills rose by {kill.kills}"
    whose = "others had taken it" if kill.by_others else "the engine had it to itself"
    return Failure(
        kind=FailureKind.OUT_OF_MEMORY,
        stage=stage,
        blame=Blame.HOST if kill.by_others else Blame.CONFIG,
        detail=f"the kernel killed a process of the engine for want of host memory, and {whose}: {found}",
        evidence=_without_repeats([counted, cause or "", *last_lines(log)]),
        exit_code=exit_code,
        retryable=True,
        phase=memory_phase(log, stage),
        facts={"left_gib": round(left_gib, 3), "usual_gib": round(usual_gib, 3)},
    )


def _unnamed_end(log: str, stage: Stage, exit_code: int | None, cause: str | None) -> Failure:
    signal_number = -exit_code if exit_code is not None and exit_code < 0 else None
    by_others = signal_number in _OF_OTHERS
    if signal_number is not None and by_others:
        name = _signal_name(signal_number)
        detail = f"the engine was killed by {name}, which was not ours: a person or a supervisor of this host sent it"
    elif cause is not None:
        detail = f"the engine ended with {cause}"
    elif signal_number is not None:
        detail = f"the engine was killed by {_signal_name(signal_number)}, which was not ours"
    else:
        detail = "the engine ended for a reason its log does not name in known words"
    return Failure(
        kind=FailureKind.UNKNOWN if signal_number is None else FailureKind.ENGINE_CRASH,
        stage=stage,
        blame=Blame.HOST if by_others else Blame.CONFIG,
        detail=detail,
        evidence=_without_repeats([cause or "", *last_lines(log)]),
        exit_code=exit_code,
        retryable=True,
    )


def _signal_name(number: int) -> str:
    known = {member.value: member.name for member in signal.Signals}
    return known.get(number, f"signal {number}")


def _earliest(texts: Iterable[FailureText], message: str) -> _Found | None:
    """The one that the log says first: what comes later follows from it. Of two at one place, the first of `texts`."""
    found = [one for text in texts if (one := _find(text, message))]
    return min(found, key=lambda one: one.match.start(), default=None)


def _foremost(texts: Iterable[FailureText], message: str) -> _Found | None:
    """The first of `texts` that the log holds anywhere."""
    return next((one for text in texts if (one := _find(text, message))), None)


def _find(text: FailureText, message: str) -> _Found | None:
    match = text.regex.search(message)
    if match is None:
        return None
    facts = _facts(match)
    return None if text.when is not None and not text.when(facts) else _Found(text, match, facts)


def _facts(match: re.Match[str]) -> dict[str, float]:
    """The numbers of a text by name, memory in GiB; `short_gib` is what is missing between need and supply."""
    facts: dict[str, float] = {}
    for name, group in match.groupdict().items():
        number = _NUMBER.fullmatch(group or "")
        if number is not None and name not in _WORDS:
            facts[name] = float(number[1]) * _GIB_OF_UNIT.get(number[2] or "GiB", 1.0)
    if {"needed_gib", "available_gib"} <= facts.keys():
        facts["short_gib"] = round(facts["needed_gib"] - facts["available_gib"], 6)
    return facts


def _whole_lines(match: re.Match[str]) -> list[str]:
    start = match.string.rfind("\n", 0, match.start()) + 1
    end = match.string.find("\n", match.end())
    return match.string[start : end if end >= 0 else None].splitlines()


def _without_repeats(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for line in map(shortened, lines) if line))
