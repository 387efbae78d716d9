from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.config.translation import translate_command
from optimizer.core.errors import InputError
from optimizer.engine.vllm.old_flags import OLD_FLAGS, OLD_SWITCHES
from tests.flag_catalogues import RELEASES, TEXTS_COMMAND, problems, release

TRANSLATED = (
    "vllm serve meta-llama/Llama-2-13b-chat-hf --gpu-memory-utilization 0.95 --max-num-seqs 256 --max-model-len 4096 "
    "--block-size 16 --cudagraph-capture-sizes 1 2 4 8"
)


def words(text: str, version: str | None = "0.32.0") -> str:
    return " ".join(translate_command(text, None if version is None else release(version)).words)


@pytest.mark.parametrize("version", [*RELEASES, None])
def test_the_command_of_the_texts_becomes_one_of_today(version):
    found = translate_command(TEXTS_COMMAND, None if version is None else release(version))
    assert " ".join(found.words).startswith(TRANSLATED)
    assert found.kept == 4
    outcomes = {change.given.split()[0]: change.outcome for change in found.changes}
    assert outcomes["--swap-space"] == "replaced"
    assert outcomes["--max-padding-tokens"] == "needless"
    assert outcomes["--prefix-cache-size"] == "related"
    assert all(change.today and change.why for change in found.changes)


@pytest.mark.parametrize("version", RELEASES)
def test_what_comes_out_has_no_problem_left(version):
    found = translate_command(TEXTS_COMMAND, release(version))
    assert problems(shlex.join(found.words), version) == []


@pytest.mark.parametrize(
    ("given", "today"),
    [
        ("--swap-space 4", "--kv-offloading-size 4"),
        ("-tp 4 --swap-space 4", "-tp 4 --kv-offloading-size 16"),
        ("--max-num-seqs 64 --enforce-eager", "--max-num-seqs 64 --enforce-eager"),
        ("--max_num_seqs=64", "--max_num_seqs 64"),
        ("--enable-dynamic-memory --use-v2-block-manager --block-size 16", "--block-size 16"),
        ("--disable-prefix-caching", "--no-enable-prefix-caching"),
        ("--max-batch-size 64 --max-num-seqs 256", "--max-num-seqs 256"),
        (
            "--speculative-model X --num-speculative-tokens 5",
            '--speculative-config {"model": "X", "num_speculative_tokens": 5}',
        ),
        (
            """--speculative-config '{"method": "eagle"}' --speculative-model X""",
            '--speculative-config {"method": "eagle", "model": "X"}',
        ),
        (
            "--num-speculative-tokens 5 --speculative-config.num_speculative_tokens 3",
            "--speculative-config.num_speculative_tokens 3",
        ),
        ("--cuda-graph-mode full -cc.mode 3", '--compilation-config {"cudagraph_mode": "FULL", "mode": 3}'),
        (
            "vllm serve --use-v2-block-manager m",
            "vllm serve m",
        ),
        ("python -m vllm.entrypoints.openai.api_server --model m --swap-space 0", "vllm serve m"),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m", "vllm serve m --attention-backend FLASHINFER"),
    ],
)
def test_each_form(given, today):
    for version in (*RELEASES, None):
        if version == "0.33.0" and "disable-prefix" in given:
            continue
        assert words(given, version) == today


def test_variables_that_are_still_read_stay():
    found = translate_command("VLLM_USE_V1=1 VLLM_LOGGING_LEVEL=DEBUG vllm serve m", release("0.32.0"))
    assert found.env == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert [change.given for change in found.changes] == ["VLLM_USE_V1=1"]


def test_a_release_that_has_a_flag_keeps_it():
    assert words("--max-num-partial-prefills 2", "0.26.0") == "--max-num-partial-prefills 2"
    assert words("--max-num-partial-prefills 2", "0.32.0") == ""
    assert words("--disable-log-requests", "0.33.0") == "--disable-log-requests"
    assert words("--disable-prefix-caching", "0.33.0") == "--disable-prefix-caching"


def test_an_unknown_flag_is_left_out_and_said_to_be_unknown():
    found = translate_command("--max-num-sqs 64 --block-size 16", release("0.32.0"))
    assert found.words == ("--block-size", "16")
    (change,) = found.changes
    assert (change.given, change.outcome, change.today) == (
        "--max-num-sqs 64", "unknown", "did you mean --max-num-seqs?",
    )  # fmt: skip


def test_two_that_mean_the_same_say_so():
    (change,) = translate_command("--max-batch-size 64 --max-num-seqs 256", release("0.32.0")).changes
    assert change.today == "--max-num-seqs, which the command sets already"


def test_what_is_no_command_is_refused():
    for text in (
        "",
        "vllm bench serve --burstiness 1",
        "python benchmark_serving.py --duration 60",
        "vllm serve m a b",
    ):
        with pytest.raises(InputError):
            translate_command(text, None)


def test_the_load_generators_are_named_as_another_program():
    with pytest.raises(InputError, match="`vllm bench` is another program"):
        translate_command("vllm bench serve --burstiness 1", None)
    with pytest.raises(InputError, match="`vllm bench serve` does today"):
        translate_command("python benchmarks/benchmark_serving.py --model m", None)


@given(st.lists(st.sampled_from([*OLD_FLAGS, "max-num-seqs", "tensor-parallel-size"]), max_size=6))
def test_no_old_flag_survives(names):
    text = shlex.join(word for name in names for word in (f"--{name}", *([] if name in OLD_SWITCHES else ["2"])))
    found = translate_command(f"vllm serve m {text}", release("0.32.0"))
    left = {word.removeprefix("--") for word in found.words if word.startswith("--")}
    assert not left & OLD_FLAGS.keys()
