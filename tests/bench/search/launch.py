"""The flags of a launch as numbers, with vLLM's own value for each that is not set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.core.engine_config import FlagValue
from optimizer.search_spaces import get_flag


@dataclass(frozen=True, slots=True)
class Launch:
    """What vLLM would run under some flags; attributes are named after them."""

    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    prefix_caching: bool
    chunked_prefill: bool
    long_prefill_token_threshold: int
    fp8_kv: bool
    drafter: str
    draft_tokens: int
    cudagraph_mode: str
    capture_size: int
    async_scheduling: bool
    cpu_offload_gb: float
    tensor_parallel: int
    attention_backend: str
    renderer_num_workers: int


def read_launch(flags: Mapping[str, FlagValue], *, context_tokens: int, batched_tokens: int) -> Launch:
    """Read the flags.

    Args:
        flags: As launched.
        context_tokens: The model's own longest request, which holds without `max-model-len`.
        batched_tokens: What holds without `max-num-batched-tokens`; vLLM's depends on the card.
    """

    def of(name: str, default: FlagValue) -> Any:
        value = get_flag(flags, name)
        return default if value is None else value

    seqs = int(of("max-num-seqs", 256))
    drafter = str(of("speculative-config.method", "none"))
    return Launch(
        gpu_memory_utilization=float(of("gpu-memory-utilization", 0.92)),
        max_model_len=int(of("max-model-len", context_tokens)),
        max_num_seqs=seqs,
        max_num_batched_tokens=int(of("max-num-batched-tokens", batched_tokens)),
        block_size=int(of("block-size", 16)),
        prefix_caching=bool(of("enable-prefix-caching", True)),
        chunked_prefill=bool(of("enable-chunked-prefill", True)),
        long_prefill_token_threshold=int(of("long-prefill-token-threshold", 0)),
        fp8_kv=str(of("kv-cache-dtype", "auto")).startswith("fp8"),
        drafter=drafter,
        draft_tokens=0 if drafter == "none" else int(of("speculative-config.num_speculative_tokens", 1)),
        cudagraph_mode="NONE"
        if of("enforce-eager", False)
        else str(of("compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE")),
        capture_size=int(of("compilation-config.max_cudagraph_capture_size", min(2 * seqs, 512))),
        async_scheduling=bool(of("async-scheduling", True)),
        cpu_offload_gb=float(of("cpu-offload-gb", 0.0)),
        tensor_parallel=int(of("tensor-parallel-size", 1)),
        attention_backend=str(of("attention-backend", "FLASH_ATTN")),
        renderer_num_workers=int(of("renderer-num-workers", 1)),
    )
