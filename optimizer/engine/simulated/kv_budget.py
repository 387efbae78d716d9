"""From memory to KV blocks: what weights and activations leave of the fictitious GPU."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.engine.simulated.settings import AUTO_LEN, EngineSettings
from optimizer.engine.simulated.vllm_log import NO_CACHE_MEMORY, StartupFailure, kv_cache_too_small

ACTIVATION_ELEMENTS_PER_HIDDEN = 16
"""Peak activation of the profiling run, in bfloat16 elements per batched token and unit of hidden size; assumed."""


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The pool that a launch gets.

    Attributes:
        available_bytes: Memory for the pool.
        num_gpu_blocks: Whole blocks that fit, the null block included.
        pool_tokens: Size as vLLM states it: `max_concurrency` times `max_model_len`.
        max_model_len: As given, or fitted to the pool under `auto`.
        max_concurrency: Requests of `max_model_len` that the blocks make up.
    """

    available_bytes: int
    num_gpu_blocks: int
    pool_tokens: int
    max_model_len: int
    max_concurrency: float


def plan_kv_pool(settings: EngineSettings) -> KvPlan | StartupFailure:
    """Sizes the pool, or says in vLLM's words why no request of `max_model_len` fits into it."""
    size = settings.block_size
    block_bytes = settings.kv_bytes_per_token * size
    available = available_bytes(settings)
    num_blocks = max(0, available) // block_bytes
    if num_blocks < 2:
        return StartupFailure(f"ValueError: {NO_CACHE_MEMORY}")
    usable_tokens = (num_blocks - 1) * size
    max_model_len = settings.max_model_len
    if max_model_len == AUTO_LEN:
        max_model_len = min(usable_tokens, settings.shape.max_position_embeddings)
    blocks_per_request = -(-max_model_len // size)
    if usable_tokens < max_model_len:
        return kv_cache_too_small(
            max_model_len, blocks_per_request * block_bytes, available - block_bytes, usable_tokens
        )
    concurrency = num_blocks / blocks_per_request
    return KvPlan(available, num_blocks, int(concurrency * max_model_len), max_model_len, concurrency)


def available_bytes(settings: EngineSettings) -> int:
    """Bytes for the KV pool; negative when weights and activations alone do not fit into the share."""
    if settings.num_gpu_blocks_override is not None:
        return settings.num_gpu_blocks_override * settings.block_size * settings.kv_bytes_per_token
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    activation = 2 * ACTIVATION_ELEMENTS_PER_HIDDEN * settings.shape.hidden_size * settings.max_num_batched_tokens
    return int(settings.device_bytes * settings.gpu_memory_utilization) - settings.weight_bytes - activation
