"""Under which names vLLM reports its figures on /metrics, the newest spelling first.

Sample names as they stand in the text: counters end in `_total`. Older releases said `gpu_cache_usage_perc`,
`gpu_prefix_cache_…` and `time_per_output_token_seconds`.
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
    "ttft_s": ("vllm:time_to_first_token_seconds_sum",),
    "ttft_count": ("vllm:time_to_first_token_seconds_count",),
    "itl_s": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "itl_count": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "queue_s": ("vllm:request_queue_time_seconds_sum",),
    "queue_count": ("vllm:request_queue_time_seconds_count",),
}
"""Counters, summed over engines."""

SPLIT: dict[str, tuple[str, str, frozenset[str]]] = {
    "requests_done": ("vllm:request_success_total", "finished_reason", frozenset({"stop", "length", "repetition"})),
    "waiting_capacity": ("vllm:num_requests_waiting_by_reason", "reason", frozenset({"capacity"})),
    "waiting_deferred": ("vllm:num_requests_waiting_by_reason", "reason", frozenset({"deferred"})),
}
"""Sums over the samples of one name whose label has one of the values: (name, label, values)."""

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

OPTIONAL = frozenset(
    {"drafted_tokens", "accepted_tokens", "requests_done", "waiting_capacity", "waiting_deferred"}
    | {"ttft_s", "ttft_count", "itl_s", "itl_count", "queue_s", "queue_count"}
)
"""Absent without speculative decoding, in older releases, or before the first request: not worth a note."""

WANTED = (
    frozenset(name for table in (COUNTERS, GAUGES, SHARES) for spellings in table.values() for name in spellings)
    | {name for name, _, _ in SPLIT.values()}
    | {CACHE_INFO}
)
"""Every sample name that is read."""
