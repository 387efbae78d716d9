"""What flags say of memory, with vLLM's defaults of each kind of device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.engine.memory.config_fields import CannotPredict
from optimizer.engine.memory.launch_sizes import launch_sizes

GIB = 1024**3


def sizes(flags=None, env=None, *, device="gpu", gib=140, max_position=32768, latent=False):
    return launch_sizes(
        flags or {}, env or {}, device=device, device_bytes=gib * GIB, max_position=max_position, latent=latent
    )


@pytest.mark.parametrize(
    ("device", "gib", "flags", "tokens", "seqs"),
    [
        ("gpu", 140, {}, 8192, 1024),
        ("gpu", 24, {}, 2048, 256),
        ("gpu", 180, {}, 16384, 1024),
        ("cpu", 24, {}, 2048, 128),
        ("cpu", 24, {"tensor-parallel-size": 2}, 4096, 256),
        ("gpu", 140, {"performance-mode": "throughput"}, 16384, 2048),
        ("gpu", 140, {"max-num-seqs": 4, "max-model-len": 512}, 2048, 4),
        ("gpu", 140, {"max-num-batched-tokens": 512}, 512, 512),
        ("gpu", 140, {"max-num-batched-tokens": "8k"}, 8000, 1024),
    ],
)
def test_tokens_and_requests_of_a_step(device, gib, flags, tokens, seqs):
    found = sizes(flags, device=device, gib=gib)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("flag", "tokens"), [(None, 32768), (4096, 4096), ("16k", 16000), ("16K", 16384), (-1, None), ("auto", None)]
)
def test_the_longest_request(flag, tokens):
    assert sizes({} if flag is None else {"max-model-len": flag}).max_model_len == tokens


def test_the_block_size_of_each_device():
    assert (sizes().block_size, sizes(device="cpu").block_size) == (16, 128)
    assert (sizes(latent=True).block_size, sizes(device="cpu", latent=True).block_size) == (64, 16)


def test_a_given_pool_in_place_of_a_share():
    assert sizes({"kv-cache-memory-bytes": "4G"}).kv_pool_bytes == 4 * GIB
    assert sizes({"num-gpu-blocks-override": 40}).kv_pool_blocks == 40
    assert sizes(env={"VLLM_CPU_KVCACHE_SPACE": "3"}, device="cpu").kv_pool_bytes == 3 * GIB
    assert sizes(env={"VLLM_CPU_KVCACHE_SPACE": "0"}, device="cpu").kv_pool_bytes is None
    assert sizes(env={"VLLM_CPU_KVCACHE_SPACE": "3"}).kv_pool_bytes is None, "of no meaning on a GPU"


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 51),
        ({"max-num-seqs": 32}, 11),
        ({"max-cudagraph-capture-size": 256}, 35),
        ({"max-num-batched-tokens": 64}, 11),
        ({"cudagraph-capture-sizes": [1, 2, 4, 99999]}, 3),
        ({"enforce-eager": True}, 0),
        ({"optimization-level": 0}, 0),
        ({"compilation-config": {"cudagraph_mode": "NONE"}}, 0),
    ],
)
def test_batch_sizes_that_are_captured(flags, count):
    assert sizes(flags).graph_sizes == count


def test_experts_have_ranks_of_their_own_only_when_asked():
    flags = {"tensor-parallel-size": 4, "data-parallel-size": 2}
    assert sizes(flags).expert_ranks == 4
    assert sizes({**flags, "enable-expert-parallel": True}).expert_ranks == 8


def test_speculation():
    assert sizes({"speculative-config": {"method": "ngram"}}).ngram
    draft = sizes({"speculative-config": {"method": "eagle3", "model": "/draft"}})
    assert draft.notes == ("the draft model's weights and KV cache are not counted",)
    assert not draft.ngram


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"hf-overrides": {"num_hidden_layers": 2}}, "--hf-overrides changes the model"),
        ({"enable-lora": True}, "--enable-lora"),
        ({"decode-context-parallel-size": 2}, "context parallelism"),
        ({"gpu-memory-utilization": 1.5}, "--gpu-memory-utilization 1.5 is no share"),
        ({"gpu-memory-utilization": "most"}, "'most' is no number"),
        ({"max-num-seqs": 0}, "--max-num-seqs 0 is no whole number"),
        ({"max-num-seqs": 2.5}, "2.5"),
        ({"tensor-parallel-size": 10**30}, "is no number"),
        ({"block-size": True}, "True is no number"),
    ],
)
def test_flags_that_cannot_be_counted_with(flags, reason):
    with pytest.raises(CannotPredict, match=reason):
        sizes(flags)


@given(
    st.dictionaries(
        st.sampled_from(
            ["max-num-seqs", "max-model-len", "gpu-memory-utilization", "block-size", "speculative-config", "dtype"]
        ),
        st.integers() | st.floats() | st.text(max_size=8) | st.booleans() | st.just([1]) | st.just({"method": 3}),
    )
)
def test_whatever_a_flag_holds_the_answer_is_sizes_or_a_reason(flags):
    try:
        found = sizes(flags)
    except CannotPredict as trouble:
        assert trouble.reason
    else:
        assert 0 < found.utilization <= 1
        assert 1 <= found.max_num_seqs <= found.max_num_batched_tokens
