"""The words in which vLLM (0.26 to 0.33) says why it ends, what each means, and who is to blame.

They are sought in the messages alone (`log_lines.complaints`), one message a line. Groups of a regex whose name is no
`said` hold numbers, and become the failure's facts; of a `_gib` group with a unit of its own (`512.00 MiB`) the unit
counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from optimizer.core.failure import Blame, FailureKind, MemoryPhase
from optimizer.engine.vllm.violations import (
    asks_for_all_memory,
    context_shortage,
    is_empty_card,
    memory_shortage,
    no_pool,
    overdraft,
)

Facts: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FailureText:
    """One thing that vLLM says.

    Attributes:
        regex: Finds it, `^` and `$` being the ends of a message.
        detail: A sentence for a person; `{name}` is the group of that name.
        violation: How far the setting is from working, from the facts.
        when: Whether the facts make it this text rather than the next one with the same regex.
        phase: What needed the memory, where the text alone tells.
    """

    regex: re.Pattern[str]
    kind: FailureKind
    blame: Blame
    detail: str
    violation: Callable[[Facts], float] | None = None
    retryable: bool = False
    when: Callable[[Facts], bool] | None = None
    phase: MemoryPhase | None = None


def _config(
    regex: str,
    kind: FailureKind,
    detail: str,
    *,
    violation: Callable[[Facts], float] | None = None,
    retryable: bool = False,
    when: Callable[[Facts], bool] | None = None,
    phase: MemoryPhase | None = None,
) -> FailureText:
    compiled = re.compile(regex, re.MULTILINE)
    return FailureText(compiled, kind, Blame.CONFIG, detail, violation, retryable, when, phase)


def _host(regex: str, kind: FailureKind, detail: str) -> FailureText:
    return FailureText(re.compile(regex, re.MULTILINE), kind, Blame.HOST, detail, retryable=True)


_REFUSED_LINE = "the engine refuses the command line: {said}"
_REFUSED_VALUE = "the engine refuses a value: {said}"
_REFUSED_COMBINATION = "the engine refuses the combination: {said}"
_REFUSED_MODEL = "the engine cannot serve the model: {said}"
_UP_TO_TAG = r".*?(?= \[type=|$)"
"""A message of pydantic up to its tag, which repeats the whole input."""
_N = r"\d+\.?\d*"
_FREE_OF_TOTAL = rf"\((?P<available_gib>{_N})/(?P<total_gib>{_N}) GiB\)"
_CARD_SHORT = rf"Free memory on device .*{_FREE_OF_TOTAL} on startup is less than .*\({_N}, (?P<needed_gib>{_N}) GiB\)"
_HOST_SHORT = (
    rf"Available memory on node \d+ {_FREE_OF_TOTAL} on startup is less than desired .*"
    rf"\({_N}, (?P<needed_gib>{_N}) GiB\)"
)
_POOL_SHORT = r" on kv cache allocation is less than requested memory for kv "

_MEMORY_CAUSES = (
    _config(
        _CARD_SHORT,
        FailureKind.OUT_OF_MEMORY,
        "{needed_gib} GiB of GPU memory are asked for, an empty card has {available_gib} of {total_gib} GiB free",
        violation=memory_shortage,
        when=is_empty_card,
    ),
    _host(
        _CARD_SHORT,
        FailureKind.GPU_BUSY,
        "only {available_gib} GiB of GPU memory are free, {needed_gib} GiB were asked for: something else holds the "
        "card",
    ),
    _host(
        r"Error in memory profiling\. Initial free memory",
        FailureKind.GPU_BUSY,
        "another process changed its GPU memory while the engine profiled its own",
    ),
    _config(
        _HOST_SHORT,
        FailureKind.OUT_OF_MEMORY,
        "{needed_gib} of {total_gib} GiB of host memory are asked for, {available_gib} are free",
        violation=memory_shortage,
        when=asks_for_all_memory,
    ),
    _host(
        _HOST_SHORT,
        FailureKind.HOST_FAULT,
        "only {available_gib} GiB of host memory are free, and the engine is to use {needed_gib}",
    ),
    _config(
        rf"max seq len \((?P<max_model_len>\d+)\), \(?(?P<needed_gib>{_N}) GiB KV cache is needed, which is larger "
        rf"than the available KV cache memory \((?P<available_gib>-?{_N}) GiB\)"
        r"(?:.*estimated maximum model length is (?P<estimated_max_model_len>\d+))?",
        FailureKind.KV_CACHE_TOO_SMALL,
        "a context of {max_model_len} tokens needs {needed_gib} GiB of KV cache, {available_gib} GiB are there",
        violation=memory_shortage,
    ),
    _config(
        r"max seq len \((?P<max_model_len>\d+)\) is larger than the maximum number of tokens that can be stored in KV "
        r"cache \((?P<kv_cache_tokens>\d+)\)",
        FailureKind.KV_CACHE_TOO_SMALL,
        "a context of {max_model_len} tokens is asked for, the KV cache holds {kv_cache_tokens}",
        violation=context_shortage,
    ),
    _config(
        rf"Available memory on node \d+ \(.*?\){_POOL_SHORT}"
        rf"\((?P<left_for_kv_gib>-{_N}|0\.0)/(?P<engine_memory_gib>{_N}) GiB\)",
        FailureKind.KV_CACHE_TOO_SMALL,
        "of {engine_memory_gib} GiB engine memory {left_for_kv_gib} GiB are left for the KV cache",
        violation=overdraft,
    ),
    _host(
        rf"Available memory on node \d+ {_FREE_OF_TOTAL}{_POOL_SHORT}\((?P<needed_gib>{_N})/{_N} GiB\)",
        FailureKind.HOST_FAULT,
        "the host has {available_gib} GiB of memory free, less than the {needed_gib} GiB of KV cache that were asked "
        "for",
    ),
    _config(
        rf"Available memory on node \d+ {_FREE_OF_TOTAL}{_POOL_SHORT}\((?P<needed_gib>{_N}) GiB\)",
        FailureKind.OUT_OF_MEMORY,
        "{needed_gib} GiB of KV cache are asked for, the host has {available_gib} GiB free",
        violation=memory_shortage,
        phase=MemoryPhase.KV_CACHE,
    ),
    _config(
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        FailureKind.KV_CACHE_TOO_SMALL,
        "no memory is left for the KV cache",
        violation=no_pool,
    ),
)

START_CAUSES = (
    # argparse; a compiler that is run at start says `gcc: error: unrecognized command-line option`.
    _config(
        r"^[\w./ -]+: error: (?P<said>(?:unrecognized arguments:|argument -|ambiguous option:"
        r"|the following arguments are).*)",
        FailureKind.REJECTED_FLAG,
        _REFUSED_LINE,
    ),
    _config(
        r"PackageNotFoundError: No package metadata was found for vllm$",
        FailureKind.REJECTED_FLAG,
        "`vllm serve`, which alone obeys --api-server-count, does not run with this package of vLLM",
    ),
    _host(
        r"\[Errno 98\]|EADDRINUSE",
        FailureKind.PORT_TAKEN,
        "another process took the port before the engine did",
    ),
    *_MEMORY_CAUSES,
    _host(
        r"We couldn't connect to '.*' to load the files",
        FailureKind.HOST_FAULT,
        "the model is neither on this host nor can it be fetched",
    ),
    _host(
        r"(?P<said>No CUDA GPUs are available|Found no NVIDIA driver|NVIDIA driver on your system is too old"
        r"|Failed to infer device type)",
        FailureKind.HOST_FAULT,
        "the engine finds no usable GPU: {said}",
    ),
    _config(
        r"(?P<said>max_num_batched_tokens \((?P<max_num_batched_tokens>\d+)\) must be greater than or equal to "
        rf"max_num_seqs \((?P<max_num_seqs>\d+)\){_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        r"(?P<said>max_num_batched_tokens \((?P<max_num_batched_tokens>\d+)\) is smaller than max_model_len "
        rf"\((?P<max_model_len>\d+)\){_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        r"(?P<said>User-specified max_model_len \((?P<max_model_len>\d+)\) is greater than the derived max_model_len "
        rf"\(max_position_embeddings=(?P<max_position_embeddings>\d+){_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        rf"(?P<said>World size \((?P<world_size>\d+)\) is larger than the number of available GPUs"
        rf"(?: \((?P<gpus>\d+)\))?{_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        r"(?P<said>Total number of attention heads \((?P<attention_heads>\d+)\) must be divisible by tensor parallel "
        rf"size \((?P<tensor_parallel_size>\d+)\){_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        rf"(?P<said>No common block size for (?P<block_size>\d+){_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(
        rf"(?P<said>(?:Unknown quantization method|Invalid kv_cache_dtype){_UP_TO_TAG})",
        FailureKind.REJECTED_FLAG,
        _REFUSED_VALUE,
    ),
    _config(
        r"(?P<said>Can't load the configuration of .*|^.* is not a local folder and is not a valid model identifier.*"
        rf"|Invalid repository ID or local directory specified.*|Model architectures? .* (?:are|is) not "
        rf"supported{_UP_TO_TAG})",
        FailureKind.REJECTED_FLAG,
        _REFUSED_MODEL,
    ),
)
"""What only an engine that starts says. Where a log holds several, the first one counts: the rest follows from it."""

CAUSES = (
    _config(
        r"(?:OutOfMemoryError: .*out of memory|(?:CUDA|HIP)(?: error:)? out of memory|not enough GPU memory)"
        rf"(?:.*Tried to allocate (?P<needed_gib>{_N} \w+))?(?:.*total capacity of (?P<total_gib>{_N} \w+))?"
        rf"(?:.*of which (?P<available_gib>{_N} \w+) is free)?",
        FailureKind.OUT_OF_MEMORY,
        "the GPU ran out of memory",
    ),
    _config(
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory(?:.*tried to allocate (?P<needed_gib>\d+ bytes))?",
        FailureKind.OUT_OF_MEMORY,
        "the host ran out of memory",
    ),
    _host(r"(?P<said>No space left on device.*)", FailureKind.HOST_FAULT, "the host has no room left: {said}"),
    _host(
        r"(?P<said>\[Errno 24\] Too many open files|CUDA-capable device\(s\) is/are busy or unavailable"
        r"|uncorrectable ECC error)",
        FailureKind.HOST_FAULT,
        "the host cannot run the engine: {said}",
    ),
)
"""What an engine says at any time."""

REFUSALS = (
    _config(
        r"\d+ validation errors? for \w*Config\w*\n(?P<field>[\w.\[\]-]+)\n\s+(?:Value error, )?"
        rf"(?P<said>{_UP_TO_TAG})",
        FailureKind.REJECTED_FLAG,
        "the engine refuses the value of {field}: {said}",
    ),
    _config(
        rf"\d+ validation errors? for \w*Config\w*\n\s+(?:Value error, )?(?P<said>{_UP_TO_TAG})",
        FailureKind.INVALID_COMBINATION,
        _REFUSED_COMBINATION,
    ),
    _config(r"(?P<said>\d+ validation errors? for \w*Config.*)", FailureKind.INVALID_COMBINATION, _REFUSED_COMBINATION),
)
"""Checks of settings in general, for those that no text above knows; in order of precedence."""

ENDS = (
    _config(
        r"Timed out waiting for engine core processes to start",
        FailureKind.STARTUP_TIMEOUT,
        "EngineCore did not start in the time that vLLM gives it",
    ),
    _config(r"Worker proc .* died unexpectedly.*", FailureKind.ENGINE_CRASH, "a worker of the engine died"),
    _config(
        r"EngineCore encountered (?:a fatal error|an issue)|engine core exited unexpectedly"
        r"|Engine core proc(?:ess)? \S+ died unexpectedly",
        FailureKind.ENGINE_CRASH,
        "EngineCore died",
    ),
)
"""What merely reports that something ended; in order of precedence. Some releases say it in a warning."""
