"""`check` and `translate` on the command line, against recorded flags of vLLM 0.32.0."""

from __future__ import annotations

import json
import sys

import pytest

from optimizer.app import check as check_module
from optimizer.app import translate as translate_module
from optimizer.app.engine_choice import EngineChoice
from optimizer.core.errors import HostError
from optimizer.engine.vllm.installation import VllmInstallation
from tests.drill import write_space
from tests.flag_catalogues import TEXTS_COMMAND, TODAY_IN_TEXTS, checker, release

VLLM = VllmInstallation(sys.executable, "0.32.0", "2.13.0+cpu", "3.11.7")


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """A vLLM whose flags are known without importing it."""

    def engine(kind: str, python: str | None) -> EngineChoice:
        assert python is None
        return EngineChoice(kind, "0.32.0", VLLM if kind == "vllm" else None)

    monkeypatch.setattr(check_module, "choose_engine", engine)
    monkeypatch.setattr(check_module, "flag_checker", lambda *_args, **_kwargs: checker())
    monkeypatch.setattr(translate_module, "_catalogue", lambda _python: release("0.32.0"))
    monkeypatch.chdir(tmp_path)


def test_every_wrong_flag_of_the_texts_is_named(invoke):
    result = invoke("check", "--", *TEXTS_COMMAND.split())
    assert result.exit_code == 2
    wrong = [word for word in TEXTS_COMMAND.split() if word.startswith("--") and word not in TODAY_IN_TEXTS]
    assert all(f"error: command: {flag}: vLLM 0.32.0 has no such flag" in result.stdout for flag in wrong)
    assert "instead: --kv-offloading-size 16" in result.stdout
    assert f"error: command: {len(wrong)} things are wrong" in result.stderr


def test_json_tells_the_same(invoke):
    result = invoke("check", "--json", "--", TEXTS_COMMAND)
    told = json.loads(result.stdout)
    assert result.exit_code == 2
    assert (told["ok"], told["engine"], told["subject"]) == (False, "vLLM 0.32.0", "command")
    assert {"--swap-space", "--use-cuda-graph"} < {problem["flag"] for problem in told["problems"]}
    assert told["time"] is None


@pytest.mark.parametrize(
    "words",
    [
        ("--max-num-seqs", "64"),
        ("vllm serve tiny-kv \\\n --max-num-seqs 64 \\\n --gpu-memory-utilization 0.3",),
        ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "tiny-kv"),
    ],
)
def test_a_right_command_ends_with_nothing_wrong(invoke, words):
    result = invoke("check", "--", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "flags: none is wrong" in result.stdout


def test_memory_of_a_local_model_is_foretold(invoke):
    command = ("vllm", "serve", "tiny-kv", "--max-model-len", "1024", "--gpu-memory-utilization", "0.5")
    told = json.loads(invoke("check", "--json", "--", *command).stdout)
    (memory,) = told["memory"]
    assert memory["setting"] == "command"
    assert 0 < memory["kv_pool_bytes"]["low"] <= memory["kv_pool_bytes"]["mid"] <= memory["kv_pool_bytes"]["high"]
    assert told["ok"]


def test_a_command_that_cannot_start_is_wrong(invoke):
    command = ("vllm", "serve", "tiny-kv", "--gpu-memory-utilization", "0.001")
    result = invoke("check", "--", *command)
    assert result.exit_code == 2
    assert "error: command cannot start: " in result.stdout


def test_a_space_is_looked_at_as_a_whole(invoke):
    result = invoke("check", "--space", "tiny-cpu")
    assert result.exit_code == 0
    assert "flags: none is wrong" in result.stdout
    assert "baseline" in result.stdout
    assert "for 24 trials of" in result.stdout


def test_overrides_of_a_space_are_looked_at(invoke, tmp_path):
    write_space(tmp_path, {"baseline": None})
    words = ("--space", "space.yaml", "--baseline", "vllm serve tiny-kv --swap-space 4", "--set", "max-num-sqs=8")
    result = invoke("check", *words)
    assert result.exit_code == 2
    assert "error: --set: --max-num-sqs: vLLM 0.32.0 has no such flag" in result.stdout
    assert "error: --baseline: --swap-space: vLLM 0.32.0 has no such flag" in result.stdout


def test_a_command_in_the_light_of_a_space(invoke):
    result = invoke("check", "--space", "tiny-cpu", "--json", "--", "--max-num-seqs", "4")
    told = json.loads(result.stdout)
    assert told["subject"] == "command"
    assert told["memory"], "the model is the space's"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is nothing to check"),
        (("--", "vllm bench serve --burstiness 1"), "`vllm bench` is another program"),
        (("--", "docker", "ps"), "expected `run`"),
        (("--space", "not-there"), "there is no space"),
    ],
)
def test_what_cannot_be_looked_at(invoke, words, said):
    result = invoke("check", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert "\nhint: " in result.stderr


def test_settings_are_not_looked_at_where_a_command_cannot_be_read(invoke):
    result = invoke("check", "--", "--max-num-seqs", "--block-siz", "16")
    assert result.exit_code == 2
    assert "note: settings and memory are not looked at: " in result.stdout


def test_without_vllm_the_host_is_at_fault(invoke, monkeypatch):
    def missing(_kind: str, _python: str | None) -> EngineChoice:
        raise HostError("vLLM is not installed", hint="install it")

    monkeypatch.setattr(check_module, "choose_engine", missing)
    result = invoke("check", "--", "--max-num-seqs", "64")
    assert result.exit_code == 4
    assert result.stderr.startswith("error: vLLM is not installed\nhint: ")


def test_translate_prints_todays_command_and_what_changed(invoke):
    result = invoke("translate", "--", *TEXTS_COMMAND.split())
    assert (result.exit_code, result.stderr) == (0, "")
    first, *rest = result.stdout.splitlines()
    assert first.startswith("vllm serve meta-llama/Llama-2-13b-chat-hf --gpu-memory-utilization 0.95")
    assert '--speculative-config \'{"draft_tensor_parallel_size": 1, "model": "X"' in first
    assert "  --max-padding-tokens 512" in rest
    assert "    replaced by --kv-offloading-size 16" in rest


def test_translate_as_json(invoke):
    told = json.loads(invoke("translate", "--json", "--", "--swap-space 4 --max-num-seqs 8").stdout)
    assert (told["ok"], told["kept"], told["command"]) == (True, 1, "--max-num-seqs 8 --kv-offloading-size 4")
    assert told["changes"][0]["outcome"] == "replaced"


def test_an_unknown_flag_ends_translate_with_two(invoke):
    result = invoke("translate", "--", "--bogus", "3", "--block-size", "16")
    assert result.exit_code == 2
    assert result.stdout.startswith("--block-size 16\n")
    assert "error: unknown, today and before: --bogus" in result.stderr


def test_translate_needs_no_vllm(invoke, monkeypatch):
    def missing(_python: str | None) -> VllmInstallation:
        raise HostError("vLLM is not installed")

    monkeypatch.undo()
    monkeypatch.setattr(translate_module, "find_vllm", missing)
    result = invoke("translate", "--", "--swap-space", "4")
    assert result.exit_code == 0
    assert "by the flags of vLLM 0.26 to 0.33" in result.stdout
    assert invoke("translate", "--engine-python", "python9", "--", "--swap-space", "4").exit_code == 4


def test_nothing_to_translate(invoke):
    assert invoke("translate").exit_code == 2


def test_secrets_are_masked(invoke):
    words = ("HF_TOKEN=hf_planted", "vllm", "serve", "m", "--api-key", "planted", "--swap-space", "4")
    for result in (invoke("translate", "--", *words), invoke("translate", "--json", "--", *words)):
        assert "planted" not in result.output
    assert "planted" not in invoke("check", "--", *words).output
