"""What the API refuses, and that a Prometheus parser reads `/metrics`."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.engine.simulated.command_line import parse_command_line
from optimizer.engine.simulated.generation_request import ApiError, GenerationRequest, parse_request
from optimizer.engine.simulated.kv_budget import KvPlan
from optimizer.engine.simulated.prometheus import render_metrics
from optimizer.engine.simulated.scheduler import SchedulerStats
from optimizer.engine.simulated.settings import resolve_settings

PLAN = KvPlan(available_bytes=2**30, num_gpu_blocks=10, pool_tokens=160, max_model_len=64)


def settings(*words):
    return resolve_settings(parse_command_line(["--served-model-name", "nonce", *words]), {})


def parse(body, *words, endpoint="completion"):
    return parse_request(body, endpoint, settings(*words), PLAN.max_model_len)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ([], 400, "no JSON object"),
        ({"model": "other", "prompt": [1]}, 404, "The model `other` does not exist."),
        ({"prompt": []}, 400, "non-empty"),
        ({"prompt": [[1], [2]]}, 400, "expected one"),
        ({"prompt": [True]}, 400, "expected one"),
        ({"prompt": [32_000]}, 400, "Token id 32000 is out of vocabulary"),
        ({"prompt": [1], "n": 2}, 400, "n must be 1"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"prompt": [1], "max_tokens": 64}, 400, "This model's maximum context length is 64 tokens."),
        ({"prompt": [1] * 64}, 400, "your prompt contains 64 input tokens"),
    ],
)
def test_refused_requests(body, status, text):
    error = parse(body)
    assert isinstance(error, ApiError)
    assert error.status == status
    assert text in error.message


def test_text_needs_a_tokenizer():
    assert isinstance(parse({"prompt": "hi"}, "--skip-tokenizer-init"), ApiError)
    parsed = parse({"prompt": "hi"})
    assert isinstance(parsed, GenerationRequest)
    assert parsed.prompt == [104, 105]


def test_output_lengths_default_as_vllms_do():
    completion = parse({"prompt": [1] * 4})
    chat = parse({"messages": [{"role": "user", "content": "hi"}]}, endpoint="chat")
    assert isinstance(completion, GenerationRequest)
    assert isinstance(chat, GenerationRequest)
    assert completion.max_tokens == 16
    assert chat.max_tokens == 64 - len(chat.prompt)


def test_metrics_parse_under_vllms_names():
    stats = SchedulerStats(running=3, waiting=2, kv_cache_usage=0.5, preemptions=7, finished_requests=4)
    text = render_metrics(settings("--gpu-memory-utilization", "0.5"), PLAN, stats)
    samples = {
        sample.name: sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("finished_reason", "length") == "length"
    }
    assert {name: samples[name].value for name in samples if "cache_config" not in name} == {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:num_preemptions_total": 7,
        "vllm:prefix_cache_queries_total": 0,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:prompt_tokens_total": 0,
        "vllm:generation_tokens_total": 0,
        "vllm:request_success_total": 4,
    }
    assert samples["vllm:num_requests_running"].labels == {"engine": "0", "model_name": "nonce"}
    info = samples["vllm:cache_config_info"].labels
    assert (info["block_size"], info["num_gpu_blocks"], info["kv_cache_size_tokens"]) == ("16", "10", "160")
    assert info["kv_cache_max_concurrency"] == "2.5"
