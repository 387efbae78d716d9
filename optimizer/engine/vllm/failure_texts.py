"""The words in which vLLM (0.26 to 0.33) says why it ends, what each means, and who is to blame.

They are sought in the messages alone (`log_lines.complaints`), one message a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from optimizer.core.failure import Blame, FailureKind

NO_POOL = math.log(100.0)
"""Violation of an engine that is left without any KV pool: as if it had a hundredth of what it needs."""
LEAST_VIOLATION = 0.01
"""Violation where the log, which rounds to 0.01 GiB, shows need and supply as equal."""


@dataclass(frozen=True, slots=True)
class FailureText:
    """One thing that vLLM says.

    Attributes:
        regex: Finds it, `^` and `$` being the ends of a message.
        detail: A sentence for a person; `{0}`, `{1}` are the groups of the regex.
        violation: How far the setting is from working, from the groups of the regex.
    """

    regex: re.Pattern[str]
    kind: FailureKind
    blame: Blame
    detail: str
    violation: Callable[..., float] | None = None
    retryable: bool = False


def _config(
    regex: str, kind: FailureKind, detail: str, *, violation: Callable[..., float] | None = None
) -> FailureText:
    return FailureText(re.compile(regex, re.MULTILINE), kind, Blame.CONFIG, detail, violation)


def _host(regex: str, kind: FailureKind, detail: str) -> FailureText:
    return FailureText(re.compile(regex, re.MULTILINE), kind, Blame.HOST, detail, retryable=True)


def _shortage(needed_gib: str, available_gib: str) -> float:
    """log(needed / available): 0.69 for a pool of half the size it should have."""
    needed, available = float(needed_gib), float(available_gib)
    if available <= needed / 100.0:
        return NO_POOL
    return max(math.log(needed / available), LEAST_VIOLATION)


def _overdraft(left_gib: str, requested_gib: str) -> float:
    """Beyond `NO_POOL`: how much more than the memory it may use the engine takes before it has any KV pool."""
    requested = max(float(requested_gib), 0.01)
    return NO_POOL + math.log(max(1.0, (requested - float(left_gib)) / requested))


_REFUSED_LINE = "the engine refuses the command line: {0}"
_REFUSED_COMBINATION = "the engine refuses the combination: {0}"
_REFUSED_MODEL = "the engine cannot serve the model: {0}"
_UP_TO_TAG = r".*?(?= \[type=|$)"
"""A message of pydantic up to its tag, which repeats the whole input."""

START_CAUSES = (
    # argparse; a compiler that is run at start says `gcc: error: unrecognized command-line option`.
    _config(
        r"^[\w./ -]+: error: ((?:unrecognized arguments:|argument -|ambiguous option:|the following arguments are).*)",
        FailureKind.REJECTED_FLAG,
        _REFUSED_LINE,
    ),
    _host(
        r"\[Errno 98\]|EADDRINUSE",
        FailureKind.PORT_TAKEN,
        "another process took the port before the engine did",
    ),
    _host(
        r"Free memory on device .*\(([\d.]+)/[\d.]+ GiB\) on startup is less than .*\([\d.]+, ([\d.]+) GiB\)",
        FailureKind.GPU_BUSY,
        "only {0} GiB of GPU memory are free, {1} GiB were asked for: something else holds the card",
    ),
    _host(
        r"Error in memory profiling\. Initial free memory",
        FailureKind.GPU_BUSY,
        "another process changed its GPU memory while the engine profiled its own",
    ),
    _config(
        r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache "
        r"memory \((-?[\d.]+) GiB\)",
        FailureKind.KV_CACHE_TOO_SMALL,
        "a context of {0} tokens needs {1} GiB of KV cache, {2} GiB are there",
        violation=lambda _length, needed, available: _shortage(needed, available),
    ),
    _config(
        r"requested memory for kv \((-[\d.]+|0\.0)/([\d.]+) GiB\)",
        FailureKind.KV_CACHE_TOO_SMALL,
        "of {1} GiB engine memory {0} GiB are left for the KV cache",
        violation=_overdraft,
    ),
    _host(
        r"requested memory for kv \(([\d.]+)/[\d.]+ GiB\)",
        FailureKind.HOST_FAULT,
        "the host has less memory free than the {0} GiB of KV cache that were asked for",
    ),
    _config(
        r"Available memory on node \d+ \(([\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than requested memory "
        r"for kv \(([\d.]+) GiB\)",
        FailureKind.OUT_OF_MEMORY,
        "{1} GiB of KV cache are asked for, the host has {0} GiB free",
        violation=lambda free, asked: _shortage(asked, free),
    ),
    _config(
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        FailureKind.KV_CACHE_TOO_SMALL,
        "no memory is left for the KV cache",
        violation=lambda: NO_POOL,
    ),
    _host(
        r"Available memory on node \d+ \(([\d.]+)/[\d.]+ GiB\) on startup is less than desired .*",
        FailureKind.HOST_FAULT,
        "only {0} GiB of host memory are free, less than the engine is to use",
    ),
    _host(
        r"We couldn't connect to '.*' to load the files",
        FailureKind.HOST_FAULT,
        "the model is neither on this host nor can it be fetched",
    ),
    _config(
        r"(max_num_batched_tokens \(\d+\) (?:must be greater than or equal to max_num_seqs|is smaller than "
        rf"max_model_len){_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        rf"(No common block size for \d+{_UP_TO_TAG}|World size \(\d+\) is larger than the number of{_UP_TO_TAG}"
        rf"|Total number of attention heads \(\d+\) must be divisible by{_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        r"(Can't load the configuration of .*|^.* is not a local folder and is not a valid model identifier.*"
        rf"|Invalid repository ID or local directory specified.*|Model architectures? .* (?:are|is) not "
        rf"supported{_UP_TO_TAG})",
        FailureKind.REJECTED_FLAG,
        _REFUSED_MODEL,
    ),
)
"""What only an engine that starts says. Where a log holds several, the first one counts: the rest follows from it."""

CAUSES = (
    _config(
        r"OutOfMemoryError: .*out of memory|(?:CUDA|HIP) out of memory|not enough GPU memory",
        FailureKind.OUT_OF_MEMORY,
        "the GPU ran out of memory",
    ),
    _config(
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        FailureKind.OUT_OF_MEMORY,
        "the host ran out of memory",
    ),
    _host(r"(No space left on device.*)", FailureKind.HOST_FAULT, "the host has no room left: {0}"),
)
"""What an engine says at any time."""

REFUSALS = (
    _config(
        rf"\d+ validation errors? for \w*Config\w*\n([\w.\[\]-]+)\n\s+(?:Value error, )?({_UP_TO_TAG})",
        FailureKind.REJECTED_FLAG,
        "the engine refuses the value of {0}: {1}",
    ),
    _config(
        rf"\d+ validation errors? for \w*Config\w*\n\s+(?:Value error, )?({_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(r"(\d+ validation errors? for \w*Config.*)", FailureKind.INVALID_COMBINATION, _REFUSED_COMBINATION),
)
"""Checks of settings in general, for those that no text above knows; in order of precedence."""

ENDS = (
    _config(
        r"(Timed out waiting for engine core processes to start)",
        FailureKind.STARTUP_TIMEOUT,
        "EngineCore did not start in the time that vLLM gives it",
    ),
    _config(r"(Worker proc .* died unexpectedly.*)", FailureKind.ENGINE_CRASH, "a worker of the engine died"),
    _config(r"EngineCore encountered (?:a fatal error|an issue)", FailureKind.ENGINE_CRASH, "EngineCore died"),
)
"""What merely reports that something ended; in order of precedence."""
