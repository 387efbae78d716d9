"""Pages as vLLM writes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="nonce"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="nonce"}} 2.0
vllm:kv_cache_usage_perc{{engine="0",model_name="nonce"}} {usage}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{engine="0",model_name="nonce"}} {preemptions}
vllm:num_preemptions_created{{engine="0",model_name="nonce"}} 1.7644e+09
vllm:prefix_cache_queries_total{{engine="0",model_name="nonce"}} {queries}
vllm:prefix_cache_hits_total{{engine="0",model_name="nonce"}} {hits}
vllm:prompt_tokens_total{{engine="0",model_name="nonce"}} 1000.0
vllm:generation_tokens_total{{engine="0",model_name="nonce"}} 500.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="0.3",model_name="nonce"}} 4.0
vllm:cache_config_info{{block_size="128",engine="0",kv_cache_size_tokens="{pool}",num_gpu_blocks="16"}} 1.0
process_resident_memory_bytes 1.0e+09
"""

MakePage = Callable[..., str]


@pytest.fixture
def make_page() -> MakePage:
    """A page; keywords replace single figures."""

    def make(**figures: float | str) -> str:
        plain: dict[str, float | str] = {
            "running": 3.0,
            "usage": 0.25,
            "preemptions": 5.0,
            "queries": 100.0,
            "hits": 40.0,
            "pool": 2048,
        }
        return PAGE.format(**(plain | figures))

    return make
