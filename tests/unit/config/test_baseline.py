from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.config import parse_serve_command
from optimizer.core.errors import InputError


def parse(text: str):
    return parse_serve_command(text, origin="--baseline")


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("vllm serve org/m", "org/m", {}),
        ("vllm serve --max-num-seqs 8 org/m", "org/m", {"max-num-seqs": 8}),
        ("vllm serve --enforce-eager org/m", "org/m", {"enforce-eager": True}),
        ("vllm serve --model org/m --enforce-eager", "org/m", {"enforce-eager": True}),
        ("/opt/venv/bin/vllm serve org/m --max-num-seqs=8", "org/m", {"max-num-seqs": 8}),
        ("python -m vllm.entrypoints.openai.api_server --model org/m -tp 2", "org/m", {"tensor-parallel-size": 2}),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model=org/m", "org/m", {}),
        ("/usr/bin/python3.11 -m vllm.entrypoints.cli.main serve org/m", "org/m", {}),
        ("uv run vllm serve org/m", "org/m", {}),
        ("export A=1; vllm serve org/m", "org/m", {}),
        ("$ sudo nohup vllm serve org/m --max-num-seqs 8 > log.txt 2>&1 &", "org/m", {"max-num-seqs": 8}),
        ("vllm serve org/m --max-num-seqs 8 2>&1 | tee log", "org/m", {"max-num-seqs": 8}),
        ("--max-num-seqs 8 --enable-prefix-caching", None, {"max-num-seqs": 8, "enable-prefix-caching": True}),
        (
            "docker run --rm -it --gpus all -v ~/.cache:/root/.cache -p 8000:8000 --ipc=host "
            "vllm/vllm-openai:v0.26.0 --model org/m --max-num-seqs 8",
            "org/m",
            {"max-num-seqs": 8},
        ),
        ("docker run --runtime nvidia vllm/vllm-openai:latest org/m --block-size 32", "org/m", {"block-size": 32}),
        ("podman run -d -v/a:/b -eA=1 ghcr.io/x/server:1 vllm serve org/m", "org/m", {}),
        ("docker run --entrypoint python3 x -m vllm.entrypoints.openai.api_server --model m", "m", {}),
        ("docker run -p8000:8000 -v /a:/b my/vllm serve org/m", "org/m", {}),
        (
            "vllm serve org/m \\\n  --max-num-seqs 8 \\\n  --block-size 32",
            "org/m",
            {"max-num-seqs": 8, "block-size": 32},
        ),
        ("vllm serve org/m \\  \n --max-num-seqs 8 \\", "org/m", {"max-num-seqs": 8}),
        ("vllm serve org/m \\ --max-num-seqs 8", "org/m", {"max-num-seqs": 8}),
        ("vllm serve org/m \u2013max-num-seqs 8", "org/m", {"max-num-seqs": 8}),
        ("vllm serve \u201corg/m\u201d", "org/m", {}),
    ],
)
def test_what_people_paste_is_read(text, model, flags):
    command = parse(text)
    assert (command.model, command.flags) == (model, flags)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--max_num_seqs 8", {"max-num-seqs": 8}),
        ("--max-num-seqs 8 --max-num-seqs 9", {"max-num-seqs": 9}),
        ("--gpu-memory-utilization 0.90", {"gpu-memory-utilization": 0.9}),
        ("--device-memory-utilization .5", {"gpu-memory-utilization": 0.5}),
        ("--max-model-len 8k", {"max-model-len": 8000}),
        ("--max-model-len 8K", {"max-model-len": 8192}),
        ("--max-model-len 25.6k", {"max-model-len": 25600}),
        ("--max-model-len auto", {"max-model-len": "auto"}),
        ("--max-model-len -1", {"max-model-len": -1}),
        ("--max-num-batched-tokens=16K", {"max-num-batched-tokens": 16384}),
        ("--kv-cache-memory-bytes 2G", {"kv-cache-memory-bytes": 2 * 2**30}),
        ("--load-format 8k", {"load-format": "8k"}),
        ("--no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("--disable-prefix-caching", {"enable-prefix-caching": False}),
        ("--disable_chunked_prefill", {"enable-chunked-prefill": False}),
        ("--disable-custom-all-reduce", {"disable-custom-all-reduce": True}),
        ("--no-disable-custom-all-reduce", {"disable-custom-all-reduce": False}),
        ("--no-flag-of-tomorrow", {"flag-of-tomorrow": False}),
        ("--flag-of-tomorrow --enforce-eager", {"flag-of-tomorrow": True, "enforce-eager": True}),
        ("-tp 2 -pp=4 -dp8", {"tensor-parallel-size": 2, "pipeline-parallel-size": 4, "data-parallel-size": 8}),
        ("-O2", {"optimization-level": 2}),
        ("-O 3 -q fp8 -ep", {"optimization-level": 3, "quantization": "fp8", "enable-expert-parallel": True}),
        ("-cc.cudagraph_mode FULL", {"compilation-config": {"cudagraph_mode": "FULL"}}),
        (
            """--speculative-config '{"method":"ngram","num_speculative_tokens":4}'""",
            {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}},
        ),
        (
            "--speculative-config.method ngram --speculative_config.num_speculative_tokens=4",
            {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}},
        ),
        (
            "--spec-method ngram --spec-tokens 4",
            {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}},
        ),
        (
            "--compilation-config.a.b true --compilation-config.c 2k",
            {"compilation-config": {"a": {"b": True}, "c": 2000}},
        ),
        ("--compilation-config.ops+ a,b --compilation-config.ops+=c", {"compilation-config": {"ops": ["a", "b", "c"]}}),
        ("""-sc '{"method":"x"}' --speculative-config.model y""", {"speculative-config": {"model": "y"}}),
        ("--cudagraph-capture-sizes 1 2 4", {"cudagraph-capture-sizes": [1, 2, 4]}),
        ("--cudagraph-capture-sizes=8", {"cudagraph-capture-sizes": [8]}),
        ("--revision 123e4", {"revision": "123e4"}),
        ("--seed 007", {"seed": "007"}),
    ],
)
def test_each_form_of_a_flag_gets_its_typed_value(words, flags):
    assert parse(f"vllm serve m {words}").flags == flags


def test_deployment_flags_and_secrets_are_dropped_by_name_alone():
    command = parse(
        "HF_TOKEN=hf_secret1 VLLM_API_KEY=secret2 CUDA_VISIBLE_DEVICES=0 OMP_NUM_THREADS=8 "
        "vllm serve org/m --host 0.0.0.0 --port 8000 --api-key secret3 secret4 --hf-token secret5 "
        "--served-model-name a b --uvicorn-log-level info --ssl-keyfile /k --allowed-origins '[\"*\"]' "
        "--root-path /x --uds /s --disable-log-requests --stream-interval 8 --max-num-queued-reqs 4 "
        '--disable-log-stats --model-loader-extra-config \'{"s3":{"secret_access_key":"secret6"}}\' '
        "--max-num-seqs 8"
    )
    assert command.flags == {"max-num-seqs": 8}
    assert command.env == {"OMP_NUM_THREADS": "8"}
    assert set(command.dropped) == {
        "host", "port", "api-key", "hf-token", "served-model-name", "uvicorn-log-level", "ssl-keyfile",
        "allowed-origins", "root-path", "uds", "disable-log-requests", "stream-interval", "max-num-queued-reqs",
        "disable-log-stats", "model-loader-extra-config", "HF_TOKEN", "VLLM_API_KEY", "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip
    assert "secret" not in repr(command)


def test_environment_of_a_container_is_read_and_its_secrets_are_dropped():
    command = parse("docker run -e A=1 --env=B=x=y --env HF_TOKEN=s -e INHERITED vllm/vllm-openai --model m")
    assert command.env == {"A": "1", "B": "x=y"}
    assert set(command.dropped) == {"HF_TOKEN", "INHERITED"}


def test_a_password_in_a_url_is_a_secret_whatever_its_name():
    command = parse("PROXY=http://user:pw@host/ vllm serve m")
    assert (command.env, command.dropped) == ({}, ("PROXY",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the command is empty"),
        ("   \n ", "the command is empty"),
        ("A=1", "starts nothing"),
        ("vllm serve 'org/m --x", "a quote is not closed: 'org/m --x"),
        ('vllm serve m --sc "{', 'a quote is not closed: "{'),
        ("vllm", "expected `serve` after `vllm`, not 'nothing'"),
        ("vllm bench serve", "not 'bench'"),
        ("sglang serve m", "'sglang' does not start"),
        ("python server.py", "'server.py' is not vLLM's server module"),
        ("python -m http.server", "'http.server'"),
        ("docker ps", "not 'ps'"),
        ("docker run --rm", "names no image"),
        ("docker run nginx", "image 'nginx'"),
        ("vllm serve m extra", "the word 'extra' belongs to no flag"),
        ("vllm serve m --max-num-seqs 8 9", "'9'"),
        ("vllm serve m --enforce-eager true", "'--enforce-eager' takes no value, but 'true'"),
        ("vllm serve m --enable-prefix-caching=True", "takes no value, but 'True'"),
        ("--max-num-seqs 8 org/m", "'org/m' belongs to no flag"),
        ("vllm serve m --max-num-seqs", "'--max-num-seqs' has no value"),
        ("vllm serve m --max-num-seqs --enforce-eager", "'--max-num-seqs' has no value"),
        ("vllm serve m --cudagraph-capture-sizes", "'--cudagraph-capture-sizes' has no value"),
        ("vllm serve m --speculative-config.method", "'--speculative-config.method' has no value"),
        ("vllm serve m --speculative-config {method:ngram}", "speculative-config is broken JSON: {method:ngram}"),
        ("vllm serve m --max-model-len 1.5K", "max-model-len, 1.5K, is no whole number"),
        ("vllm serve m -zz 3", "'-zz' is no flag"),
        ("vllm serve m -max-num-seqs 3", "'-max-num-seqs' is no flag"),
        ("vllm serve a --model b", "two models, 'a' and 'b'"),
        ("cd /x && vllm serve m", "'&&' joins a second command"),
        ("vllm serve m && echo done", "'&&' joins a second command"),
        ("vllm serve m --config c.yaml", "'--config' names a file of flags"),
    ],
)
def test_what_is_no_serve_command_is_refused_with_the_word_and_the_origin(text, words):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.message.startswith("--baseline: ")
    assert words in caught.value.message


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        parse(text)
    except InputError as error:
        assert error.message


@given(
    st.lists(
        st.sampled_from(
            ["vllm", "serve", "m", "--a", "--max-num-seqs", "8", "-tp", "--b.c", "=", "-", "--", "{", "--no-x"]
        )
    )
)
def test_any_words_are_read_or_refused(words):
    try:
        parse(" ".join(["vllm", "serve", *words]))
    except InputError as error:
        assert error.message


def test_a_broken_value_with_a_secret_is_not_shown():
    with pytest.raises(InputError) as caught:
        parse("""vllm serve m --model-loader-extra-config '{"secret_access_key": sesame}'""")
    assert "model-loader-extra-config is broken JSON" in caught.value.message
    assert "sesame" not in caught.value.message
    assert parse("vllm serve m --api-key '{sesame'").dropped == ("api-key",)
