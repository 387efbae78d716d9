"""The KV cache in blocks, against figures that vLLM prints."""

from __future__ import annotations

import pytest

from optimizer.engine.memory.config_fields import CannotPredict
from optimizer.engine.memory.kv_cache import kv_layout
from optimizer.engine.memory.launch_sizes import launch_sizes

GIB = 1024**3


@pytest.fixture
def layout(shape):
    """The blocks of a model under flags, on a GPU."""

    def make(name="qwen2.5-14b", dtype="bfloat16", **flags):
        model = shape(name)
        sizes = launch_sizes(
            {flag.replace("_", "-"): value for flag, value in flags.items()},
            {},
            device="gpu",
            device_bytes=140 * GIB,
            max_position=model.max_position,
            latent=model.latent is not None,
        )
        return kv_layout(model, sizes, dtype)

    return make


def per_token(layout):
    return layout.block_bytes[0] * len(layout.group_windows) / layout.block_size


@pytest.mark.parametrize(
    ("name", "flags", "kib"),
    [
        ("qwen2.5-14b", {}, 192),
        ("llama-3.1-8b", {}, 128),
        ("llama-2-7b", {}, 512),
        ("qwen2.5-14b", {"kv_cache_dtype": "fp8"}, 96),
        ("qwen2.5-14b", {"tensor_parallel_size": 4}, 48),
        ("qwen2.5-14b", {"tensor_parallel_size": 8}, 24),
        ("qwen2.5-14b", {"tensor_parallel_size": 16}, 24),
        ("qwen2.5-14b", {"pipeline_parallel_size": 2}, 96),
        ("deepseek-v3", {}, 68.625),
        ("deepseek-v3", {"tensor_parallel_size": 8}, 68.625),
    ],
    ids=str,
)
def test_bytes_of_a_token_on_one_gpu(layout, name, flags, kib):
    assert per_token(layout(name, **flags)) == kib * 1024


def test_the_block_size_changes_nothing_but_the_grain(layout):
    assert per_token(layout(block_size=128)) == per_token(layout())
    assert layout(block_size=128).request_blocks(1000, 0) == 8


def test_a_pool_holds_the_tokens_that_were_reported_for_it(layout):
    """One H200, vLLM 0.26, default flags: 99.9 GiB and 545,712 tokens."""
    blocks = layout()
    assert blocks.pool_tokens(34107, 32768, 0) == 545_712
    assert 545_712 * per_token(blocks) / GIB == pytest.approx(99.9, abs=0.05)
    assert blocks.pool_blocks(545_712, 32768, 0) == pytest.approx(34107)


def test_layers_of_one_window_need_no_more_than_it_and_the_steps_in_flight(layout):
    mistral = layout("mistral-7b-v0.1")
    assert mistral.group_windows == (4096,)
    assert mistral.request_blocks(32768, 8192) == -(-(4095 + 8192) // 16) + 1
    assert mistral.request_blocks(1024, 8192) == 64 + 1


def test_mixed_layers_are_put_into_groups_of_one_size(layout):
    """Gemma 3 12B: 8 full layers and 40 sliding ones make 6 groups of 8."""
    gemma = layout("gemma-3-12b")
    assert sorted(gemma.group_windows, key=str) == [1024] * 5 + [None]
    assert gemma.block_bytes == (16 * 8 * 2 * 8 * 256 * 2,)
    full, window = -(-131072 // 16), -(-(1023 + 8192) // 16) + 1
    assert gemma.request_blocks(131072, 8192) == full + 5 * window


def test_without_the_hybrid_manager_every_layer_keeps_everything(layout):
    gemma = layout("gemma-3-12b", disable_hybrid_kv_cache_manager=True)
    assert gemma.group_windows == (None,)
    assert per_token(gemma) == 48 * 2 * 8 * 256 * 2


def test_kinds_of_nearly_one_size_are_padded_to_the_larger(shape):
    model = shape("gpt-oss-20b", layer_types=["sliding_attention"] * 11 + ["full_attention"] * 13)
    sizes = launch_sizes({}, {}, device="gpu", device_bytes=80 * GIB, max_position=131072, latent=False)
    blocks = kv_layout(model, sizes, "bfloat16")
    assert sorted(blocks.group_windows, key=str) == [128, None]
    assert blocks.block_bytes == (16 * 13 * 2 * 8 * 64 * 2,)


@pytest.mark.parametrize("dtype", ["nvfp4", "turboquant_k8v4", "int7"])
def test_a_cache_whose_layout_is_not_known_is_named(layout, dtype):
    with pytest.raises(CannotPredict, match=f"type {dtype}"):
        layout(kv_cache_dtype=dtype)


def test_a_checkpoint_may_ask_for_a_cache_of_eight_bits(shape):
    scheme = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    sizes = launch_sizes({}, {}, device="gpu", device_bytes=80 * GIB, max_position=32768, latent=False)
    assert per_token(kv_layout(shape(quantization_config=scheme), sizes, "bfloat16")) == 96 * 1024
