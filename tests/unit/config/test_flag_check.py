from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.config.flag_check import refused
from optimizer.core.errors import InputError
from optimizer.search_spaces import GAMING_VARIABLES
from tests.flag_catalogues import RELEASES, TEXTS_COMMAND, TODAY_IN_TEXTS, checker, problems, release


@pytest.mark.parametrize("version", RELEASES)
def test_every_flag_of_the_texts_that_does_not_exist_is_named_with_todays_form(version):
    found = {problem.flag: problem for problem in problems(TEXTS_COMMAND, version)}
    given = {word for word in TEXTS_COMMAND.split() if word.startswith("--")}
    assert found.keys() == given - set(TODAY_IN_TEXTS)
    assert all(problem.instead for problem in found.values())
    assert {flag: found[flag].instead for flag in ("--swap-space", "--num-speculative-tokens", "--max-batch-size")} == {
        "--swap-space": "--kv-offloading-size 16",
        "--num-speculative-tokens": "--speculative-config.num_speculative_tokens 5",
        "--max-batch-size": "--max-num-seqs 64",
    }
    assert "nor had any release" in found["--max-padding-tokens"].message
    assert "nor had any release" not in found["--swap-space"].message


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m",
        "vllm serve m -tp 2 -O3 --max-model-len 8k --max_num_seqs=64 --no-enable-prefix-caching --seed 007",
        "vllm serve m --max-model-len auto --gpu-memory-utilization .9 --quantization None",
        "vllm serve m --device-memory-utilization 1e-1",
        "vllm serve m --kv-cache-dtype fp8 --dtype bfloat16 --moe-backend FlashInfer-TRTLLM",
        "vllm serve m -cc.cudagraph_mode FULL -cc.pass_config.fuse_norm_quant true --compilation-config.mode 3",
        """vllm serve m --speculative-config '{"method": "ngram", "num-speculative-tokens": "4"}'""",
        "vllm serve m --spec-method ngram --spec-tokens 4 --cudagraph-capture-sizes 1 2 4",
        """vllm serve m --limit-mm-per-prompt '{"image": 2}' --allowed-origins '["*"]' --hf-overrides fn""",
        "vllm serve m --host 0.0.0.0 --port 80 --api-key a b --ssl-keyfile k --hf-token --disable-log-stats",
        "HF_TOKEN=x VLLM_LOGGING_LEVEL=DEBUG OMP_NUM_THREADS=4 vllm serve m",
        "python -m vllm.entrypoints.openai.api_server --model m --eplb-config.step_interval 1k",
        "docker run --gpus all -e VLLM_USE_MODELSCOPE=1 vllm/vllm-openai:v0.32.0 --model m --enforce-eager",
        "--max-num-seqs 64 \\\n --block-size 16",
    ],
)
def test_what_the_engine_takes_is_no_problem(version, command):
    if version == "0.26.0":
        command = command.replace("--device-memory", "--gpu-memory")  # the other spelling came later
    assert problems(command, version) == []


@pytest.mark.parametrize(
    ("words", "message", "instead"),
    [
        ("--max-num-seq 5", "would take it for --max-num-seqs", "--max-num-seqs"),
        ("--max-num 5", "did you mean --max-num-seqs?", "--max-num-seqs"),
        ("-max-num-seqs 5", "is no flag of vLLM", "--max-num-seqs"),
        ("--bogus 1", "--bogus: vLLM 0.32.0 has no such flag", None),
        ("--disable-prefix-caching", "no such flag", "--no-enable-prefix-caching"),
        ("--no-headless", "no such flag", "--headless"),
        ("--max-num-seqs 8k", "must be a whole number, not '8k'", None),
        ("--max-num-seqs 0.5", "must be a whole number, not 0.5", None),
        ("--gpu-memory-utilization high", "must be a number, not 'high'", None),
        ("--max-num-batched-tokens lots", "a whole number, or a size such as 8k, not 'lots'", None),
        ("--max-num-batched-tokens 1.5K", "no whole number of K", "a capital K"),
        ("--tensor-parallel-size two", "--tensor-parallel-size must be a whole number", None),
        ("-tp two", "--tensor-parallel-size must be a whole number", None),
        ("--max-num-seqs", "has no value", "write --max-num-seqs VALUE"),
        ("--max-num-seqs --enforce-eager", "'--max-num-seqs' has no value", "write --max-num-seqs VALUE"),
        ("--enforce-eager true", "takes no value", "write --enforce-eager or --no-enforce-eager"),
        ("--kv-cache-dtype fp9", "--kv-cache-dtype may not be 'fp9'; did you mean fp8?; allowed: auto, ", None),
        ("--cudagraph-capture-sizes 1 two", "must be a whole number, not 'two'", None),
        ("--speculative-config {a:1}", "broken JSON", "single quotes"),
        ("--speculative-config ngram", "--speculative-config must be JSON, not 'ngram'", None),
        ("""--compilation-config '[1]'""", "must be a JSON object, not [1]", None),
        ("--speculative-config.metod ngram", "--speculative-config has no key metod; did you mean method?", None),
        ("--speculative-config.method ngrm", "needs one of", None),
        ("-cc.pass_config.fuse_norm_qant true", "has no key pass_config.fuse_norm_qant", None),
        ("-cc.pass_config.fuse_norm_quant maybe", "needs true or false as pass_config.fuse_norm_quant", None),
        ("--eplb-config.step_interval soon", "needs a whole number as step_interval, not 'soon'", None),
        ("--speculative-config.model 3", "needs text as model, not 3", None),
        ("--max-num-seqs.x 4", "--max-num-seqs takes no keys", "--max-num-seqs VALUE"),
        ("--stream-interval 8", "--stream-interval may not be set: it bundles tokens", "leave it out"),
        ("--max-num-queued-reqs 8", "turning users away", "leave it out"),
        (
            "--speculative-config.rejection_sample_method synthetic",
            "may not be set: it accepts guessed",
            "leave it out",
        ),
        ("""-sc '{"synthetic_acceptance_length": 3}'""", "may not be set: it accepts guessed", "leave it out"),
        ("--config c.yaml", "names a file of flags", "paste the flags"),
        ("stray", "the word 'stray' belongs to no flag", "quotes"),
    ],
)
def test_one_wrong_flag_is_one_problem(words, message, instead):
    (problem,) = problems(f"vllm serve m {words}")
    assert problem.where == "command"
    assert message in problem.message
    assert (problem.instead is None) == (instead is None)
    assert instead is None or instead in str(problem.instead)


@pytest.mark.parametrize(
    ("env", "message", "instead"),
    [
        ("VLLM_ATTENTION_BACKEND=FLASHINFER", "does not read it; it is a flag now", "--attention-backend FLASHINFER"),
        ("VLLM_USE_V1=1", "does not read it", "leave it out"),
        ("VLLM_LOGGIN_LEVEL=x", "did you mean VLLM_LOGGING_LEVEL?", "VLLM_LOGGING_LEVEL"),
        ("VLLM_ENABLE_STARTUP_PLAN=1", "may not be set: it reuses a KV cache size", "leave it out"),
    ],
)
def test_variables_that_are_read_no_more_or_game_the_score(env, message, instead):
    (problem,) = problems(f"{env} vllm serve m")
    assert message in problem.message
    assert problem.instead == instead
    assert "VLLM_ENABLE_STARTUP_PLAN" in GAMING_VARIABLES


def test_a_variable_of_somebody_elses_plugin_is_let_be():
    assert problems("VLLM_OUR_OWN_PLUGIN_SWITCH=1 vllm serve m") == []


def test_what_an_older_release_still_has_is_not_old_for_it():
    assert problems("vllm serve m --max-num-partial-prefills 2", "0.26.0") == []
    assert problems("vllm serve m --max-num-partial-prefills 2", "0.32.0") != []
    assert problems("vllm serve m --disable-log-requests", "0.33.0") == []
    assert problems("vllm serve m --disable-log-requests", "0.32.0")[0].instead == "leave it out"


def test_a_secret_is_not_shown():
    found = problems("vllm serve m --api-key '{sesame' --hf-token sesame --max-num-seqs x")
    assert [problem.flag for problem in found] == ["--max-num-seqs"]
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-num-seqs", 64),
        ("max_num_seqs", 64),
        ("max-model-len", "auto"),
        ("enable-prefix-caching", False),
        ("speculative-config.num_speculative_tokens", 4),
        ("speculative-config", {"method": "ngram", "num_speculative_tokens": 4}),
        ("compilation-config.cudagraph_mode", "FULL"),
        ("cudagraph-capture-sizes", [1, 2]),
        ("cudagraph-capture-sizes", 8),
        ("dtype", "float32"),
        ("spec-tokens", 3),
    ],
)
def test_typed_settings_that_the_engine_takes(flag, value):
    assert list(checker().setting(flag, value, where="file")) == []


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("max-num-seqs", 64.0, "must be a whole number, not 64.0"),
        ("max-num-seqs", True, "needs a value, a whole number, and is only switched on"),
        ("enforce-eager", "yes", "is switched on or off, and takes no value such as 'yes'"),
        ("enforce-eager", 1, "is switched on or off"),
        ("headless", False, "cannot be turned off: leave it out"),
        ("no-enable-prefix-caching", True, "turns off enable-prefix-caching"),
        ("max-num-seqs", {"a": 1}, "must be a whole number"),
        ("cudagraph-capture-sizes", [], "needs at least one value"),
        ("compilation-config.cudagraph_mod", "FULL", "did you mean cudagraph_mode?"),
        ("max-num-seq", 64, "would take it for --max-num-seqs"),
        ("swap-space", 4, "has no such flag; preempted requests"),
    ],
)
def test_typed_settings_that_it_does_not_take(flag, value, message):
    (problem,) = checker().setting(flag, value, where="space.yaml: parameters.x")
    assert message in problem.message
    assert problem.where == "space.yaml: parameters.x"


def test_all_problems_are_told_in_one_error():
    error = refused(problems(TEXTS_COMMAND))
    assert isinstance(error, InputError)
    assert error.exit_code == 2
    assert "command: --swap-space: vLLM 0.32.0 has no such flag" in error.message
    assert "    instead: --kv-offloading-size 16" in error.message


@given(
    st.lists(
        st.one_of(
            st.sampled_from(sorted(release("0.32.0").names)).map(lambda name: f"--{name}"),
            st.sampled_from(
                ["1", "x", "{}", "[", "-1", "--no-x", "-tp", "-O2", "=", "a.b", "--a.b", "--swap-space", "true"]
            ),
        ),
        max_size=8,
    )
)
def test_any_words_are_looked_at_without_a_fault(words):
    assert isinstance(problems(f"vllm serve m {shlex.join(words)}"), list)


@given(st.sampled_from(sorted(release("0.33.0").names)))
def test_every_name_is_known_and_no_shorter_one_passes(name):
    known = release("0.33.0")
    assert known.spelled(f"--{name}") is not None
    for shorter in (name[:-1], name[:-2]):
        if known.spelled(f"--{shorter}") is None:
            (problem, *_) = problems(f"vllm serve m --{shorter}", "0.33.0")
            assert "no such flag" in problem.message
