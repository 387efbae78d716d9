"""From an engine's last words to a `Failure`. The texts are vLLM's own (0.26 to 0.33); unknown text stays UNKNOWN."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage

_LOG_PREFIX = re.compile(r"^(\(\w[\w\- ]* pid=\d+\) )?((ERROR|INFO|WARNING) [\d\- :]+\[[\w.]+:\d+\] )?")
_MAX_EVIDENCE_CHARS = 400
_LAST_LINES = 5


def _shortage(needed: str, available: str) -> float:
    """log(needed / available), as the graded violation; a pool that is zero or negative counts as 1/100 of the need."""
    need, have = float(needed), float(available)
    return math.log(need / max(have, need / 100.0)) if need > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    kind: FailureKind
    blame: Blame
    detail: str
    """A sentence; `{0}`, `{1}` are the groups of the regex."""
    violation: Callable[..., float] | None = None
    retryable: bool = False


def _p(
    regex: str,
    kind: FailureKind,
    detail: str,
    *,
    blame: Blame = Blame.CONFIG,
    violation: Callable[..., float] | None = None,
    retryable: bool = False,
) -> _Pattern:
    return _Pattern(re.compile(regex), kind, blame, detail, violation, retryable)


_PATTERNS = (
    _p(r"error: (unrecognized arguments: .*)", FailureKind.REJECTED_FLAG, "the engine refuses the command line: {0}"),
    _p(r"error: (argument .*)", FailureKind.REJECTED_FLAG, "the engine refuses the command line: {0}"),
    _p(
        r"\[Errno 98\]|[Aa]ddress already in use",
        FailureKind.PORT_TAKEN,
        "another process took the port before the engine did",
        blame=Blame.HOST,
        retryable=True,
    ),
    _p(
        r"Free memory on device .*\(([\d.]+)/[\d.]+ GiB\) on startup is less than desired GPU memory utilization "
        r"\([\d.]+, ([\d.]+) GiB\)",
        FailureKind.GPU_BUSY,
        "only {0} GiB of GPU memory are free, {1} GiB were asked for: something else holds the card",
        blame=Blame.HOST,
        retryable=True,
    ),
    _p(
        r"Error in memory profiling\. Initial free memory",
        FailureKind.GPU_BUSY,
        "another process changed its GPU memory while the engine profiled its own",
        blame=Blame.HOST,
        retryable=True,
    ),
    _p(
        r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache "
        r"memory \((-?[\d.]+) GiB\)",
        FailureKind.KV_CACHE_TOO_SMALL,
        "a context of {0} tokens needs {1} GiB of KV cache, {2} GiB are there",
        violation=lambda _length, needed, available: _shortage(needed, available),
    ),
    _p(
        r"requested memory for kv \((-[\d.]+|0\.0)/([\d.]+) GiB\)",
        FailureKind.KV_CACHE_TOO_SMALL,
        "of {1} GiB engine memory {0} GiB are left for the KV cache",
        violation=lambda left, total: _shortage(total, left),
    ),
    _p(
        r"requested memory for kv \(([\d.]+)/[\d.]+ GiB\)",
        FailureKind.HOST_FAULT,
        "the host has less memory free than the {0} GiB of KV cache that were asked for",
        blame=Blame.HOST,
        retryable=True,
    ),
    _p(
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        FailureKind.KV_CACHE_TOO_SMALL,
        "no memory is left for the KV cache",
    ),
    _p(
        r"Available memory on node \d+ \(([\d.]+)/[\d.]+ GiB\) on startup is less than desired .*",
        FailureKind.HOST_FAULT,
        "only {0} GiB of host memory are free, less than the engine is to use",
        blame=Blame.HOST,
        retryable=True,
    ),
    _p(
        r"OutOfMemoryError: (CUDA out of memory[^.]*)|CUDA out of memory occurred|not enough GPU memory",
        FailureKind.OUT_OF_MEMORY,
        "the GPU ran out of memory",
    ),
    _p(r"DefaultCPUAllocator: can't allocate memory", FailureKind.OUT_OF_MEMORY, "the host ran out of memory"),
    _p(
        r"(max_num_batched_tokens \(\d+\) "
        r"(?:must be greater than or equal to max_num_seqs|is smaller than max_model_len).*)",
        FailureKind.INVALID_COMBINATION,
        "the engine refuses the combination: {0}",
    ),
    _p(
        r"(\d+ validation errors? for \w+.*)",
        FailureKind.INVALID_COMBINATION,
        "the engine refuses the combination: {0}",
    ),
    _p(
        r"(World size \(\d+\) is larger than the number of available GPUs.*"
        r"|must be divisible by tensor parallel size.*)",
        FailureKind.INVALID_COMBINATION,
        "the engine refuses the combination: {0}",
    ),
    _p(
        r"(Can't load the configuration of .*|is not a local folder and is not a valid model identifier.*"
        r"|Invalid repository ID or local directory specified.*|Model architectures? .* (?:are|is) not supported.*)",
        FailureKind.REJECTED_FLAG,
        "the engine cannot serve the model: {0}",
    ),
    _p(r"(Worker proc .* died unexpectedly.*)", FailureKind.ENGINE_CRASH, "a worker of the engine died: {0}"),
    _p(r"EngineCore encountered (?:a fatal error|an issue)", FailureKind.ENGINE_CRASH, "EngineCore died"),
)
"""In order of precedence: what names the cause stands above what merely reports the end."""

_GARBAGE = re.compile(r"^\s*(\^+|File \".*\", line \d+.*|Traceback .*|)\s*$")


def classify(log: str, *, stage: Stage, exit_code: int | None) -> Failure:
    """Say what went wrong from the engine's log.

    Args:
        log: The log, or its last part.
        stage: Where in the trial the engine ended.
        exit_code: Of its leader; the API server exits 0 when its engine dies, so the code alone tells nothing.

    Returns:
        The failure with its evidence; kind UNKNOWN, with the last lines, when no known text stands in the log.
    """
    for pattern in _PATTERNS:
        match = pattern.regex.search(log)
        if match:
            groups = tuple(group or "" for group in match.groups())
            return Failure(
                kind=pattern.kind,
                stage=stage,
                blame=pattern.blame,
                detail=pattern.detail.format(*(group.strip() for group in groups)),
                evidence=_lines_around(log, match),
                exit_code=exit_code,
                violation=pattern.violation(*groups) if pattern.violation else None,
                retryable=pattern.retryable,
            )
    return Failure(
        kind=FailureKind.UNKNOWN,
        stage=stage,
        blame=Blame.CONFIG,
        detail="the engine ended for a reason its log does not name in known words",
        evidence=last_lines(log),
        exit_code=exit_code,
        retryable=True,
    )


def last_lines(log: str) -> tuple[str, ...]:
    """The last telling lines of a log: no stack frames, no markers, prefixes stripped."""
    lines = [_clean(line) for line in log.splitlines()]
    return tuple(line for line in lines if line and not _GARBAGE.match(line))[-_LAST_LINES:]


def _lines_around(log: str, match: re.Match[str]) -> tuple[str, ...]:
    start = log.rfind("\n", 0, match.start()) + 1
    end = log.find("\n", match.end())
    found = log[start : end if end >= 0 else len(log)]
    return tuple(line for line in (_clean(line) for line in found.splitlines()) if line)


def _clean(line: str) -> str:
    return _LOG_PREFIX.sub("", line.strip())[:_MAX_EVIDENCE_CHARS]
