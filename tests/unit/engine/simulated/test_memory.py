"""From flags and model shape to the KV pool, and what vLLM's own checks refuse."""

from __future__ import annotations

import json

import pytest

from optimizer.core.errors import InputError
from optimizer.engine.simulated.command_line import parse_command_line
from optimizer.engine.simulated.kv_budget import KvPlan, plan_kv_pool
from optimizer.engine.simulated.model_shape import ModelShape, read_model_shape
from optimizer.engine.simulated.settings import refusal, resolve_settings
from optimizer.engine.simulated.vllm_log import GIB, StartupFailure

KV_BYTES_PER_TOKEN = 2 * ModelShape().kv_elements_per_token
"""In 16 bits."""


def settings(*words, **environ):
    return resolve_settings(parse_command_line(words), environ)


def plan(*words, **environ):
    return plan_kv_pool(settings(*words, **environ))


def test_the_shape_comes_from_config_json(project_root):
    shape = read_model_shape(str(project_root / "search_spaces/models/tiny-kv"))
    # Two layers of 16 heads of 128, key and value.
    assert shape.kv_elements_per_token == 2 * 2 * 16 * 128
    assert shape.vocab_size == 512


def test_missing_heads_follow_the_attention_heads(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4}))
    shape = read_model_shape(str(tmp_path))
    assert (shape.num_key_value_heads, shape.head_dim) == (4, 16)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_config_json_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_model_shape(str(tmp_path))


def test_a_model_that_is_not_at_hand_has_the_default_shape():
    assert read_model_shape("no/such/model") == ModelShape()


def test_the_share_of_the_device_minus_weights_and_activations_is_the_pool():
    small, large = plan("--gpu-memory-utilization", "0.5"), plan("--gpu-memory-utilization", "0.75")
    assert isinstance(small, KvPlan)
    assert isinstance(large, KvPlan)
    assert large.available_bytes - small.available_bytes == 4 * GIB
    assert small.pool_tokens == small.num_gpu_blocks * 16 <= small.available_bytes / KV_BYTES_PER_TOKEN
    batched = plan("--gpu-memory-utilization", "0.5", "--max-num-batched-tokens", "8k")
    assert isinstance(batched, KvPlan)
    assert batched.available_bytes < small.available_bytes


def test_bytes_override_the_share_and_blocks_override_the_bytes():
    by_bytes = plan("--kv-cache-memory-bytes", "1G", "--gpu-memory-utilization", "0.1")
    assert isinstance(by_bytes, KvPlan)
    assert by_bytes.pool_tokens == GIB // KV_BYTES_PER_TOKEN
    by_blocks = plan("--kv-cache-memory-bytes", "1G", "--num-gpu-blocks-override", "600", "--block-size", "32")
    assert isinstance(by_blocks, KvPlan)
    assert (by_blocks.num_gpu_blocks, by_blocks.pool_tokens) == (600, 19_200)


def test_auto_fits_the_length_to_the_pool():
    fitted = plan("--max-model-len", "auto", "--num-gpu-blocks-override", "10")
    assert isinstance(fitted, KvPlan)
    assert fitted.max_model_len == 144, "of ten blocks one is the null block"


def test_a_pool_below_one_request_fails_in_vllms_words():
    failure = plan("--max-model-len", "1024", "--num-gpu-blocks-override", "33")
    assert isinstance(failure, StartupFailure)
    assert failure.text.startswith(
        "ValueError: To serve at least one request with the model's max seq len (1024), (0.06 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (0.03 GiB). Based on the available memory, the estimated "
        "maximum model length is 512."
    )


def test_nothing_left_for_the_pool_fails_in_vllms_words():
    failure = plan("--gpu-memory-utilization", "0.1")
    assert isinstance(failure, StartupFailure)
    assert "No available memory for the cache blocks." in failure.text
    larger_device = plan("--gpu-memory-utilization", "0.1", AUTOTUNE_SIM_DEVICE_GIB="64")
    assert isinstance(larger_device, KvPlan)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--max-num-seqs", "128", "--max-num-batched-tokens", "64"],
            "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)",
        ),
        (["--gpu-memory-utilization", "1.5"], "1 validation error for CacheConfig"),
        (["--kv-cache-dtype", "fp7"], "Invalid kv_cache_dtype: fp7"),
        (["--spec-method", "ngram"], "num_speculative_tokens must be provided"),
        (["--max-num-seqs", "0"], "1 validation error for SchedulerConfig"),
        (["--max-model-len", "9000"], "User-specified max_model_len (9000) is greater than the derived max_model_len"),
    ],
)
def test_refused_settings(words, text):
    failure = refusal(settings(*words))
    assert failure is not None
    assert text in failure.text


def test_defaults_are_accepted_and_shrink_with_the_token_budget():
    assert refusal(settings()) is None
    lean = settings("--max-num-batched-tokens", "64")
    assert lean.max_num_seqs == 64
    assert refusal(lean) is None


@pytest.mark.parametrize(
    ("words", "bytes_per_element"),
    [
        ([], 2),
        (["--dtype", "bfloat16"], 2),
        (["--dtype", "float32"], 4),
        (["--kv-cache-dtype", "fp8"], 1),
        (["--dtype", "float32", "--kv-cache-dtype", "fp8_e4m3"], 1),
        (["--dtype", "float32", "--kv-cache-dtype", "bfloat16"], 2),
    ],
)
def test_the_kv_cache_has_its_own_type_or_that_of_the_weights(words, bytes_per_element):
    pool = plan("--kv-cache-memory-bytes", "1G", "--max-model-len", "4096", *words)
    assert isinstance(pool, KvPlan)
    assert pool.pool_tokens == GIB // (ModelShape().kv_elements_per_token * bytes_per_element)


def test_weights_take_memory_by_their_type():
    assert settings("--dtype", "float32").weight_bytes == 2 * settings().weight_bytes


def test_the_stated_size_counts_requests_of_the_greatest_length():
    pool = plan("--max-model-len", "100", "--num-gpu-blocks-override", "15", "--block-size", "16")
    assert isinstance(pool, KvPlan)
    # Seven blocks hold 100 tokens, and fifteen blocks are two requests and a seventh.
    assert (pool.max_concurrency, pool.pool_tokens) == (15 / 7, 214)


@pytest.mark.parametrize(("blocks", "fits"), [(8, False), (9, True)])
def test_the_null_block_is_not_for_requests(blocks, fits):
    found = plan("--max-model-len", "128", "--num-gpu-blocks-override", str(blocks))
    assert isinstance(found, KvPlan) is fits


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan"])
def test_a_senseless_speed_is_named(speed):
    with pytest.raises(InputError, match="AUTOTUNE_SIM_SPEED"):
        settings(AUTOTUNE_SIM_SPEED=speed)
