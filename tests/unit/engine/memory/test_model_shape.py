"""Shapes from configurations as they are published, and refusals of those that nobody can count on."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.engine.memory.config_fields import CannotPredict, ConfigFields
from optimizer.engine.memory.model_shape import LatentAttention, read_model_shape, shape_from_config


def test_grouped_heads_and_a_window_that_is_switched_off(shape):
    qwen = shape("qwen2.5-14b")
    assert (qwen.layers, qwen.query_heads, qwen.kv_heads, qwen.head_dim) == (48, 40, 8, 128)
    assert set(qwen.windows) == {None}
    assert (qwen.max_position, qwen.tied_embeddings, qwen.dtype) == (32768, False, "bfloat16")


def test_without_a_number_of_kv_heads_each_query_has_its_own(shape):
    assert shape("llama-2-7b").kv_heads == 32


def test_one_head_of_keys_for_all_queries(shape):
    assert shape("llama-2-7b", num_key_value_heads=1).kv_heads == 1


def test_latent_attention(shape):
    deepseek = shape("deepseek-v3")
    assert deepseek.latent == LatentAttention(512, 64, 128, 128, 1536)
    assert deepseek.latent.cached_dim == 576
    assert deepseek.experts.layers == (False,) * 3 + (True,) * 58
    assert (deepseek.experts.count, deepseek.experts.width, deepseek.experts.shared_width) == (256, 2048, 2048)


def test_experts_of_the_size_that_the_family_names(shape):
    assert shape("mixtral-8x7b").experts.width == 14336
    assert shape("qwen3-30b-a3b").experts.width == 768
    assert shape("qwen3-30b-a3b", mlp_only_layers=[0, 5]).experts.layers[:7] == (False, *[True] * 4, False, True)


def test_sliding_layers_as_the_file_or_the_family_says(shape):
    assert set(shape("mistral-7b-v0.1").windows) == {4096}
    gemma = shape("gemma-3-12b")
    assert gemma.windows[:6] == (1024,) * 5 + (None,)
    assert gemma.windows.count(None) == 8
    assert shape("gpt-oss-20b").windows[:2] == (128, None)


def test_of_a_multimodal_model_the_language_part_alone(shape):
    gemma = shape("gemma-3-12b")
    assert gemma.hidden_size == 3840
    assert gemma.notes == ("the vision part of the model is not counted",)
    assert gemma.tied_embeddings, "Gemma ties them without saying so"


def test_the_context_is_scaled_as_vllm_scales_it(shape):
    assert shape("llama-3.1-8b").max_position == 131072, "llama3 scaling is in the figure already"
    assert shape("gemma-3-12b").max_position == 131072
    linear = {"rope_type": "linear", "factor": 4}
    assert shape("llama-2-7b", rope_scaling=linear).max_position == 16384


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.15625),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8.0),
        ({"quant_method": "fp8"}, 8.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            4.5,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
    ],
)
def test_compressed_checkpoints(shape, quantization, bits):
    assert shape(quantization_config=quantization).quantization.bits == pytest.approx(bits)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["BrandNewForCausalLM"]}, "architecture BrandNewForCausalLM is not known"),
        ({"architectures": ["JambaForCausalLM"]}, "hybrid model"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "hybrid model"),
        ({"architectures": None}, "names no architecture"),
        ({"architectures": "LlamaForCausalLM"}, "is not a list of texts"),
        ({"layer_types": ["linear_attention"] * 48}, "keep a state"),
        ({"layer_types": ["full_attention"] * 3}, "3 entries for 48 layers"),
        ({"layer_types": ["strided"] * 48}, "holds 'strided'"),
        ({"layer_types": ["sliding_attention"] * 48, "sliding_window": None}, "no sliding_window"),
        ({"use_sliding_window": True}, "which layers use its sliding window"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers = 1000"),
        ({"num_hidden_layers": -1}, "is not a whole number from 1"),
        ({"num_hidden_layers": "48"}, "num_hidden_layers = '48'"),
        ({"num_hidden_layers": 48.5}, "48.5"),
        ({"num_hidden_layers": True}, "True"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"num_key_value_heads": 80}, "num_key_value_heads = 80"),
        ({"num_attention_heads": 37}, "no multiple of 37"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"vocab_size": []}, r"vocab_size = \[\]"),
        ({"torch_dtype": "int3"}, "type 'int3'"),
        ({"torch_dtype": 16}, "torch_dtype = 16"),
        ({"quantization_config": {"quant_method": "magic"}}, "quantization 'magic'"),
        ({"quantization_config": "awq"}, "is not an object"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "is not known"),
        ({"index_topk": 2048}, "sparse attention"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "many"}}, "factor = 'many'"),
    ],
)
def test_what_cannot_be_counted_on_is_named(shape, changes, reason):
    with pytest.raises(CannotPredict, match=reason):
        shape(**changes)


def test_a_number_of_many_digits_is_not_printed(shape):
    with pytest.raises(CannotPredict) as caught:
        shape(num_hidden_layers=10**4000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"[" * 200_000, "no JSON"),
        (b'{"num_hidden_layers": ' + b"9" * 10_000 + b"}", "no JSON"),
        (b'{"a": "' + b"x" * 9_000_000 + b'"}', "MiB, which is no configuration"),
    ],
)
def test_files_that_are_no_configuration(folder, content, reason):
    with pytest.raises(CannotPredict, match=reason):
        read_model_shape(folder(content))


def test_a_missing_folder_and_a_pipe_in_place_of_the_file(tmp_path):
    with pytest.raises(CannotPredict, match="there is no file"):
        read_model_shape(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CannotPredict, match="there is no file"):
        read_model_shape(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_field_holds_the_answer_is_a_shape_or_a_reason(config, data):
    name = data.draw(st.sampled_from(["qwen2.5-14b", "deepseek-v3", "gemma-3-12b", "gpt-oss-20b", "qwen2.5-14b-awq"]))
    fields = config(name)
    spoilt = data.draw(st.dictionaries(st.sampled_from(sorted(fields)), json_values, min_size=1, max_size=3))
    try:
        found = shape_from_config(ConfigFields({**fields, **spoilt}, "config.json"))
    except CannotPredict as trouble:
        assert trouble.reason
        assert len(trouble.reason) < 400
    else:
        assert 0 < found.layers <= 2000
        assert len(found.windows) == found.layers
