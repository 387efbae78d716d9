"""Which flags are part of the key of torch.compile's cache: a new value of one compiles the model anew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from optimizer.core.engine_config import FlagValue
from optimizer.search_spaces import FloatParameter, IntParameter, Parameter, get_flag

COMPILED_FLAGS: Final = frozenset(
    {
        "all2all-backend",
        "async-scheduling",
        "attention-backend",
        "attention-config",
        "block-size",
        "compilation-config",
        "cpu-offload-gb",
        "cudagraph-capture-sizes",
        "data-parallel-size",
        "dtype",
        "enable-eplb",
        "enable-expert-parallel",
        "enforce-eager",
        "kernel-config",
        "kv-cache-dtype",
        "kv-offloading-size",
        "linear-backend",
        "max-cudagraph-capture-size",
        "max-model-len",
        "max-num-batched-tokens",
        "max-num-seqs",
        "moe-backend",
        "offload-group-size",
        "optimization-level",
        "performance-mode",
        "pipeline-parallel-size",
        "quantization",
        "speculative-config",
        "tensor-parallel-size",
    }
)
"""From `VllmConfig.compute_hash` and what it calls, vLLM 0.32 and 0.33."""


def is_compiled(flag: str) -> bool:
    """Whether a canonical flag, perhaps dotted, is part of the key."""
    return flag.partition(".")[0] in COMPILED_FLAGS


def compiles(flags: Mapping[str, FlagValue]) -> bool:
    """Whether an engine with these fixed flags compiles at all: not when eager, and not at optimization level 0."""
    return get_flag(flags, "enforce-eager") is not True and get_flag(flags, "optimization-level") != 0


def value_count(parameter: Parameter) -> float:
    """How many values a parameter has; infinite for a range without steps."""
    if isinstance(parameter, IntParameter | FloatParameter):
        return math.inf if parameter.steps is None else parameter.steps + 1
    return len(parameter.values)
