"""Flags become words, and the words say the same flags again."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.config import parse_serve_command
from optimizer.core.engine_config import EngineConfig
from optimizer.engine.vllm.argv import (
    CLI_MODULE,
    SERVER_MODULE,
    api_servers,
    flag_words,
    serve_command,
    server_arguments,
    server_module,
)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("enforce-eager", True, ["--enforce-eager"]),
        ("enable-prefix-caching", False, ["--no-enable-prefix-caching"]),
        ("max-num-seqs", 64, ["--max-num-seqs", "64"]),
        ("gpu-memory-utilization", 0.1, ["--gpu-memory-utilization", "0.1"]),
        ("gpu-memory-utilization", 0.123456789, ["--gpu-memory-utilization", "0.123456789"]),
        ("cpu-offload-gb", 2.0, ["--cpu-offload-gb", "2.0"]),
        ("cpu-offload-gb", 1e-07, ["--cpu-offload-gb", "1e-07"]),
        ("kv-cache-dtype", "fp8", ["--kv-cache-dtype", "fp8"]),
        ("cudagraph-capture-sizes", [1, 2, 4], ["--cudagraph-capture-sizes", "1", "2", "4"]),
        ("lora-modules", [{"name": "a", "path": "/b c"}], ["--lora-modules", '{"name": "a", "path": "/b c"}']),
        (
            "speculative-config",
            {"num_speculative_tokens": 4, "method": "ngram"},
            ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ),
        ("compilation-config", {"cudagraph_mode": None}, ["--compilation-config", '{"cudagraph_mode": null}']),
    ],
)
def test_each_kind_of_value(flag, value, words):
    assert flag_words({flag: value}) == words


@given(st.floats(allow_nan=False))
def test_a_number_comes_back_exactly(value):
    assert float(flag_words({"gpu-memory-utilization": value})[1]) == value


def test_flags_keep_their_order():
    assert flag_words({"max-num-seqs": 1, "block-size": 16}) == ["--max-num-seqs", "1", "--block-size", "16"]
    assert flag_words({}) == []


def test_the_server_listens_on_loopback_under_the_nonce_and_its_argv_holds_no_key():
    config = EngineConfig("vllm", "/models/tiny kv", {"max-num-seqs": 8, "enforce-eager": True})
    words = server_arguments(config, port=8123, served_model_name="nonce")
    assert words[:8] == [
        *("--model", "/models/tiny kv", "--host", "127.0.0.1", "--port", "8123", "--served-model-name", "nonce")
    ]
    assert words[8:] == ["--enforce-eager", "--max-num-seqs", "8"]
    assert "--api-key" not in words


def test_the_command_for_a_person_starts_the_same_engine():
    config = EngineConfig("vllm", "/models/tiny kv", {"max-num-seqs": 8, "enable-prefix-caching": False})
    words = serve_command("/opt/engine env/bin/python", config, port=9000)
    assert words[:3] == ["/opt/engine env/bin/python", "-m", SERVER_MODULE]
    assert "--served-model-name" not in words
    parsed = parse_serve_command(shlex.join(words), origin="test")
    assert (parsed.model, parsed.flags) == (config.model, dict(config.flags))


@pytest.mark.parametrize(
    ("flags", "module", "servers"), [({}, SERVER_MODULE, 1), ({"api-server-count": 4}, CLI_MODULE, 4)]
)
def test_several_api_servers_take_vllm_serve_which_alone_obeys_their_number(flags, module, servers):
    config = EngineConfig("vllm", "org/m", flags)
    assert (server_module(config), api_servers(config)) == (module, servers)
    words = serve_command("python", config)
    assert words[2] == module
    parsed = parse_serve_command(shlex.join(words), origin="test")
    assert (parsed.model, parsed.flags) == ("org/m", flags)
    launched = server_arguments(config, port=1, served_model_name="n")
    assert launched[:2] == (["serve", "org/m"] if flags else ["--model", "org/m"])


names = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
texts = st.from_regex(r"[a-z][a-z0-9_/.]{0,11}", fullmatch=True).filter(lambda text: text not in ("true", "false"))
shares = st.decimals(min_value=0, max_value=1, places=4).map(float)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
flags = st.fixed_dictionaries(
    {},
    optional={
        "enforce-eager": st.booleans(),
        "enable-prefix-caching": st.booleans(),
        "max-num-seqs": st.integers(1, 4096),
        "max-num-batched-tokens": st.integers(1, 10**6),
        "gpu-memory-utilization": shares,
        "watermark": shares,
        "kv-cache-dtype": texts,
        "attention-backend": texts,
        "cudagraph-capture-sizes": st.lists(st.integers(1, 512), min_size=1, max_size=5),
        "speculative-config": st.dictionaries(names, json_values, max_size=4),
        "compilation-config": st.dictionaries(names, json_values, max_size=4),
    },
)


@given(flags)
def test_words_are_read_back_as_the_same_flags(flags):
    parsed = parse_serve_command(shlex.join(["vllm", "serve", "m", *flag_words(flags)]), origin="test")
    assert parsed.flags == flags
