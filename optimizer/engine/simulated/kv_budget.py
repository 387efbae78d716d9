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
        num_gpu_blocks: Whole blocks that fit.
        pool_tokens: Tokens that these hold.
        max_model_len: As given, or fitted to the pool under `auto`.
    """

    available_bytes: int
    num_gpu_blocks: int
    pool_tokens: int
    max_model_len: int


def plan_kv_pool(settings: EngineSettings) -> KvPlan | StartupFailure:
    """Sizes the pool, or says in vLLM's words why no request of `max_model_len` fits into it."""
    bytes_per_token = settings.shape.kv_bytes_per_token
    available = available_bytes(settings)
    num_blocks = max(0, available) // (bytes_per_token * settings.block_size)
    pool_tokens = num_blocks * settings.block_size
    if num_blocks < 1:
        return StartupFailure(f"ValueError: {NO_CACHE_MEMORY}")
    max_model_len = settings.max_model_len
    if max_model_len == AUTO_LEN:
        max_model_len = min(pool_tokens, settings.shape.max_position_embeddings)
    if pool_tokens < max_model_len:
        return kv_cache_too_small(max_model_len, max_model_len * bytes_per_token, available, pool_tokens)
    return KvPlan(available, num_blocks, pool_tokens, max_model_len)


def available_bytes(settings: EngineSettings) -> int:
    """Bytes for the KV pool; negative when weights and activations alone do not fit into the share."""
    if settings.num_gpu_blocks_override is not None:
        return settings.num_gpu_blocks_override * settings.block_size * settings.shape.kv_bytes_per_token
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes
    activation = 2 * ACTIVATION_ELEMENTS_PER_HIDDEN * settings.shape.hidden_size * settings.max_num_batched_tokens
    return int(settings.device_bytes * settings.gpu_memory_utilization) - settings.shape.weight_bytes - activation
