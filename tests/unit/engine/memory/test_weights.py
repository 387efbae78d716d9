"""Bytes of weights, against the parameter counts that the models' makers publish."""

from __future__ import annotations

import json
import struct

import pytest

from optimizer.engine.memory.account import MemoryAccount
from optimizer.engine.memory.checkpoint import checkpoint_bytes
from optimizer.engine.memory.config_fields import CannotPredict
from optimizer.engine.memory.quantization import online_quantization
from optimizer.engine.memory.weights import stage_layers, weight_bytes

GIB = 1024**3


def whole(shape, **options):
    return sum(weight_bytes(shape, dtype=shape.dtype, quantization=shape.quantization, as_stored=True, **options))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen2.5-14b", 14.77e9),
        ("llama-3.1-8b", 8.03e9),
        ("llama-2-7b", 6.74e9),
        ("qwen2.5-0.5b", 0.494e9),
        ("mistral-7b-v0.1", 7.24e9),
        ("mixtral-8x7b", 46.7e9),
        ("qwen3-30b-a3b", 30.5e9),
        ("gemma-3-12b", 11.8e9),
    ],
)
def test_published_parameter_counts(shape, name, parameters):
    assert whole(shape(name)) / 2 == pytest.approx(parameters, rel=0.01)


def test_checkpoints_in_fewer_bits(shape):
    assert whole(shape("deepseek-v3")) == pytest.approx(671e9, rel=0.02), "8 bits each, the MTP layer left out"
    assert whole(shape("qwen2.5-14b-awq")) == pytest.approx(9.98e9, rel=0.02), "the size of the published files"
    assert whole(shape("gpt-oss-20b")) == pytest.approx(13.8e9, rel=0.03)


def test_a_layer_is_split_over_ranks_save_what_every_rank_keeps(shape):
    qwen = shape("qwen2.5-14b")
    alone, split = (weight_bytes(qwen, dtype="bfloat16", quantization=None, tensor_parallel=n)[0] for n in (1, 4))
    assert split == pytest.approx(alone / 4, rel=0.001)
    sixteen = weight_bytes(qwen, dtype="bfloat16", quantization=None, tensor_parallel=16)[0]
    assert sixteen > alone / 16 * 1.01, "8 heads of keys and values on 16 ranks lie on each twice"


def test_experts_are_split_over_ranks_of_their_own(shape):
    mixtral = shape("mixtral-8x7b")
    tensor = weight_bytes(mixtral, dtype="bfloat16", quantization=None, tensor_parallel=2, expert_ranks=2)[0]
    experts = weight_bytes(mixtral, dtype="bfloat16", quantization=None, tensor_parallel=2, expert_ranks=8)[0]
    routed = 2 * 32 * 8 * 3 * 4096 * 14336
    assert tensor - experts == pytest.approx(routed * (1 / 2 - 1 / 8))


def test_pipeline_stages_hold_their_layers_and_the_ends_their_tables(shape):
    assert [len(layers) for layers in stage_layers(61, 4)] == [15, 15, 16, 15]
    assert [len(layers) for layers in stage_layers(48, 1)] == [48]
    qwen = shape("qwen2.5-14b")
    stages = weight_bytes(qwen, dtype="bfloat16", quantization=None, stages=3)
    assert sum(stages) == pytest.approx(whole(qwen))
    assert stages[0] > stages[1] < stages[2]
    tied = weight_bytes(shape("qwen2.5-0.5b"), dtype="bfloat16", quantization=None, stages=2)
    assert sum(tied) > whole(shape("qwen2.5-0.5b")), "a tied head lies on the last stage once more"


def test_the_latent_expansion_is_kept_twice_once_loaded(shape):
    deepseek = shape("deepseek-v3")
    loaded = sum(weight_bytes(deepseek, dtype="bfloat16", quantization=deepseek.quantization))
    assert loaded - whole(deepseek) == pytest.approx(2 * 61 * 512 * 128 * 256)


def test_compression_while_loading(shape):
    qwen = shape("qwen2.5-14b")
    fp8 = sum(weight_bytes(qwen, dtype="bfloat16", quantization=online_quantization("fp8")))
    tables = 2 * 2 * 152064 * 5120
    assert fp8 - tables == pytest.approx((whole(qwen) - tables) / 2, rel=0.001)
    with pytest.raises(CannotPredict, match="--quantization novel"):
        online_quantization("novel")


# --- checkpoints at hand


def safetensors(folder, *sizes, header=None):
    offsets, at = {}, 0
    for number, size in enumerate(sizes):
        offsets[f"w{number}"] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **offsets} if header is None else header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def test_the_index_tells_the_bytes_of_a_checkpoint_in_parts(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 29540067328}}')
    assert checkpoint_bytes(tmp_path) == 29540067328


def test_the_header_tells_those_of_a_single_file(tmp_path):
    safetensors(tmp_path, 1000, 234)
    assert checkpoint_bytes(tmp_path) == 1234


@pytest.mark.parametrize(
    "header", [{}, {"w": 3}, {"w": {"data_offsets": [0]}}, {"w": {"data_offsets": ["a", "b"]}}, []]
)
def test_a_header_of_another_kind_tells_nothing(tmp_path, header):
    safetensors(tmp_path, header=header)
    assert checkpoint_bytes(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 8, struct.pack("<Q", 50) + b"{", struct.pack("<Q", 0)])
def test_a_file_cut_short_tells_nothing(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert checkpoint_bytes(tmp_path) is None


@pytest.mark.parametrize("index", ["{", "[]", '{"metadata": 3}', '{"metadata": {"total_size": -5}}', "{}"])
def test_a_spoilt_index_tells_nothing(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert checkpoint_bytes(tmp_path) is None


def test_a_checkpoint_is_believed_over_the_shape_unless_it_is_another_models(shape):
    qwen = shape("qwen2.5-14b")
    more = MemoryAccount(qwen, "gpu", checkpoint_bytes=int(whole(qwen) * 1.05))
    predicted = more.predict({"tensor-parallel-size": 2}, {}, device_bytes=80 * GIB)
    assert predicted.weights_bytes == pytest.approx(whole(qwen) * 1.05 / 2, rel=0.001)
    with pytest.raises(CannotPredict, match=r"the checkpoint has 2\.\d\d GiB of weights"):
        MemoryAccount(qwen, "gpu", checkpoint_bytes=int(whole(qwen) / 10))
