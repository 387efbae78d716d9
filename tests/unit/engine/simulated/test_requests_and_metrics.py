"""What the API refuses, and that a Prometheus parser reads `/metrics`."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.engine.simulated.command_line import parse_command_line
from optimizer.engine.simulated.generation_request import ApiError, GenerationRequest, parse_request
from optimizer.engine.simulated.kv_budget import KvPlan
from optimizer.engine.simulated.prometheus import render_metrics
from optimizer.engine.simulated.request_times import RequestTimes
from optimizer.engine.simulated.settings import resolve_settings
from optimizer.engine.simulated.step import SchedulerStats

PLAN = KvPlan(available_bytes=2**30, num_gpu_blocks=10, pool_tokens=160, max_model_len=64, max_concurrency=2.5)


def settings(*words):
    return resolve_settings(parse_command_line(["--served-model-name", "nonce", *words]), {})


def parse(body, *words, endpoint="completion"):
    return parse_request(body, endpoint, settings(*words), PLAN.max_model_len, ("nonce",))


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


@pytest.mark.parametrize(("given", "salt"), [({}, ""), ({"cache_salt": None}, ""), ({"cache_salt": "a1"}, "a1")])
def test_a_cache_salt_is_read(given, salt):
    parsed = parse({"prompt": [1], **given})
    assert isinstance(parsed, GenerationRequest)
    assert parsed.cache_salt == salt


def test_output_lengths_default_as_vllms_do():
    completion = parse({"prompt": [1] * 4})
    chat = parse({"messages": [{"role": "user", "content": "hi"}]}, endpoint="chat")
    assert isinstance(completion, GenerationRequest)
    assert isinstance(chat, GenerationRequest)
    assert completion.max_tokens == 16
    assert chat.max_tokens == 64 - len(chat.prompt)


def rendered(*words, without=(), stats=None):
    text = render_metrics(
        settings(*words),
        PLAN,
        stats or SchedulerStats(accepted_per_position=[5, 2]),
        RequestTimes(PLAN.max_model_len).histograms,
        without=frozenset(without),
    )
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_parse_under_vllms_names():
    stats = SchedulerStats(
        running=3,
        waiting=2,
        kv_cache_usage=0.5,
        preemptions=7,
        prompt_tokens=30,
        prompt_tokens_cached=10,
        finished_requests=4,
    )
    families = rendered("--gpu-memory-utilization", "0.5", stats=stats)
    plain = {
        name: [sample.value for sample in family.samples]
        for name, family in families.items()
        if family.type != "histogram"
    }
    assert plain == {
        "vllm:num_requests_running": [3],
        "vllm:num_requests_waiting": [2],
        "vllm:num_requests_waiting_by_reason": [2, 0],
        "vllm:kv_cache_usage_perc": [0.5],
        "vllm:num_preemptions": [7],
        "vllm:prefix_cache_queries": [0],
        "vllm:prefix_cache_hits": [0],
        "vllm:prompt_tokens": [30],
        "vllm:prompt_tokens_by_source": [20, 10, 0],
        "vllm:prompt_tokens_cached": [10],
        "vllm:generation_tokens": [0],
        "vllm:request_success": [0, 4, 0, 0, 0],
        "vllm:cache_config_info": [1],
    }
    (running,) = families["vllm:num_requests_running"].samples
    assert running.labels == {"engine": "0", "model_name": "nonce"}
    info = families["vllm:cache_config_info"].samples[0].labels
    assert (info["block_size"], info["num_gpu_blocks"], info["kv_cache_size_tokens"]) == ("16", "10", "160")
    assert (info["kv_cache_max_concurrency"], info["cache_dtype"]) == ("2.5", "auto")


def test_histograms_stand_in_the_text_with_all_their_edges():
    found = rendered()["vllm:time_to_first_token_seconds"]
    edges = [sample.labels["le"] for sample in found.samples if sample.name.endswith("_bucket")]
    assert (edges[0], edges[-1], len(edges)) == ("0.001", "+Inf", 23)
    assert [sample.name.rpartition("_")[2] for sample in found.samples[-2:]] == ["count", "sum"]


def test_speculation_is_counted_only_when_there_is_any():
    assert not any("spec_decode" in name for name in rendered())
    families = rendered("--spec-method", "ngram", "--spec-tokens", "2")
    per_position = families["vllm:spec_decode_num_accepted_tokens_per_pos"].samples
    assert [(sample.labels["position"], sample.value) for sample in per_position] == [("0", 5), ("1", 2)]


@pytest.mark.parametrize("name", ["prompt_tokens", "vllm:prompt_tokens_total"])
def test_a_family_can_be_left_out(name):
    families = rendered(without=[name])
    assert "vllm:prompt_tokens" not in families
    assert "vllm:prompt_tokens_cached" in families
    assert "vllm:cache_config_info" not in rendered(without=["cache_config_info"])
