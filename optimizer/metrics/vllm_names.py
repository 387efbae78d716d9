"""Under which names vLLM reports its figures on /metrics, the newest spelling first.

Sample names as they stand in the text: counters end in `_total`. Older releases said `gpu_cache_usage_perc` and
`gpu_prefix_cache_…`.
"""

from __future__ import annotations

COUNTERS: dict[str, tuple[str, ...]] = {
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
}
"""Counters, summed over engines."""

GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
}
"""Gauges, summed over engines."""

SHARES: dict[str, tuple[str, ...]] = {
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
"""Gauges from 0 to 1, averaged over engines."""

CACHE_INFO = "vllm:cache_config_info"
"""A constant 1 whose labels tell the size of the KV cache, one sample per engine."""

OPTIONAL = frozenset({"drafted_tokens", "accepted_tokens"})
"""Absent without speculative decoding: not worth a note."""

WANTED = frozenset(
    name for table in (COUNTERS, GAUGES, SHARES) for spellings in table.values() for name in spellings
) | {CACHE_INFO}
"""Every sample name that is read."""
