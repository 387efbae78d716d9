"""What vLLM takes where a flag is not set and its parser tells nothing: defaults that depend on the hardware."""

from __future__ import annotations

from typing import Final, Literal

from optimizer.core.engine_config import FlagValue
from optimizer.search_spaces import GIB

LARGEST_CAPTURED_BATCH: Final = 512
"""Largest default CUDA graph, in tokens of a decode step, on cards before sm100 (`_set_cudagraph_sizes` of vLLM's
`config/vllm.py`); sm100 takes 1024."""

_ON_ANY_DEVICE: Final[dict[str, FlagValue]] = {
    "gpu-memory-utilization": 0.92,
    "enable-prefix-caching": True,
    "enable-chunked-prefill": True,
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "data-parallel-size": 1,
}


def default_of(flag: str, *, device: Literal["gpu", "cpu"], device_memory_bytes: int | None) -> FlagValue | None:
    """vLLM's own value of a flag for a server that generates text, or None when it is not known here.

    The batch limits are those of `EngineArgs.get_batch_defaults`. An A100 of 80 GiB takes the smaller ones by its name,
    which is not known here: between 70 and 100 GiB nothing is said.
    """
    if flag == "block-size":
        return 128 if device == "cpu" else 16
    if flag in ("max-num-seqs", "max-num-batched-tokens"):
        limits = _batch_limits(device, device_memory_bytes)
        return None if limits is None else limits[flag == "max-num-batched-tokens"]
    return _ON_ANY_DEVICE.get(flag)


def _batch_limits(device: Literal["gpu", "cpu"], memory_bytes: int | None) -> tuple[int, int] | None:
    """max-num-seqs and max-num-batched-tokens."""
    if device == "cpu":
        return 128, 2048
    if memory_bytes is None or 70 * GIB <= memory_bytes < 100 * GIB:
        return None
    if memory_bytes >= 160 * GIB:
        return 1024, 16384
    return (1024, 8192) if memory_bytes >= 100 * GIB else (256, 2048)
