from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.config import built_in_spaces, load_space
from optimizer.core.errors import InputError

GOOD = """\
name: mine
model: tiny-kv
engine:
  device: cpu
  memory_gib: 1.5
  flags:
    load-format: dummy
  env:
    OMP_NUM_THREADS: 2
parameters:
  max-num-seqs:
    kind: int
    low: 2
    high: 64
  block-size:
    kind: choice
    choices: [16, 32]
rules:
  - max-num-seqs <= 64
workload:
  name: w
  arrivals: {kind: closed_loop, in_flight: 4}
  prompt_tokens: {kind: fixed, tokens: 16}
  output_tokens: {kind: fixed, tokens: 16}
  warmup: {requests: 4, max_s: 5}
  window: {min_s: 5, max_s: 10, min_requests: 10}
objective: throughput
slos: ["p99_e2e<=1.0x"]
baseline: vllm serve tiny-kv --max-num-seqs 8
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(InputError) as caught:
        load_space(str(path))
    assert caught.value.exit_code == 2
    message = f"{caught.value.message}\n{caught.value.hint or ''}"
    assert f"{path}: " in message
    return message.removeprefix(f"{path}: ")


def test_a_good_file_is_read(tmp_path):
    space = load_space(str(write(tmp_path, GOOD)))
    assert space.name == "mine"
    assert space.trials == 20
    assert space.engine.env == {"OMP_NUM_THREADS": "2"}
    assert space.fixed_flags() == {"load-format": "dummy"}
    assert list(space.search_space().parameters) == ["max-num-seqs", "block-size"]


@pytest.mark.parametrize(
    ("old", "new", "start", "also"),
    [
        ("objective: throughput", "objektive: throughput", "objektive: unknown key; did you mean objective?", ""),
        ("    high: 64", "    hihg: 64", "parameters.max-num-seqs.hihg: unknown key; did you mean high?", ""),
        ("  device: cpu", "  devices: cpu", "engine.devices: unknown key; did you mean device?", ""),
        ("in_flight: 4", "inflight: 4", "workload.arrivals.inflight: unknown key; did you mean in_flight?", ""),
        (
            "{requests: 4",
            "{frobnicate: 1, requests: 4",
            "workload.warmup.frobnicate: unknown key; allowed: requests, max_s",
            "",
        ),
        ("    high: 64\n", "", "parameters.max-num-seqs.high: is missing", ""),
        ("model: tiny-kv\n", "", "model: is missing", ""),
        ("    low: 2", "    low: two", "parameters.max-num-seqs.low: 'two'", "valid integer"),
        ("    low: 2", "    low: 2.5", "parameters.max-num-seqs.low: 2.5", "valid integer"),
        ("    low: 2", "    low: 64", "parameters.max-num-seqs.high: 64 must lie above `low`, which is 64", ""),
        ("    high: 64", "    high: 64\n    default: 65", "parameters.max-num-seqs.default: 65 is not in 2..64", ""),
        (
            "    kind: int",
            "    kind: integer",
            "parameters.max-num-seqs.kind: 'integer' is not known",
            "int, float, choice, bool",
        ),
        ("    kind: int\n", "", "parameters.max-num-seqs.kind: is missing", "int, float, choice, bool"),
        ("[16, 32]", "[16, on]", "parameters.block-size.choices: True", "quotes"),
        ("[16, 32]", "[]", "parameters.block-size.choices: needs either", ""),
        (
            "kind: fixed, tokens: 16}\n  out",
            "kind: fix, tokens: 16}\n  out",
            "workload.prompt_tokens.kind: 'fix'",
            "fixed",
        ),
        ("tokens: 16}\n  out", "tokens: 0}\n  out", "workload.prompt_tokens.tokens: 0", "greater than or equal to 1"),
        ("min_s: 5", "min_s: 50", "workload.window: min_s is 50", "max_s"),
        (
            "objective: throughput",
            "objective: thruput",
            "objective: 'thruput' is not known; did you mean throughput?",
            "",
        ),
        ("device: cpu", "device: tpu", "engine.device: 'tpu'", "'gpu' or 'cpu'"),
        ("device: cpu", "device: gpu", "engine.memory_gib: 1.5 is for `device: cpu`", "gpu-memory-utilization"),
        ("memory_gib: 1.5", "memory_gib: -1", "engine.memory_gib: -1", "greater than 0"),
        ("load-format: dummy", "stream-interval: 4", "engine.flags.stream-interval: this flag may not be set", "ITL"),
        ("load-format: dummy", "ssl-keyfile: x", "engine.flags.ssl-keyfile: this flag may not be set", ""),
        ("load-format: dummy", "hf-token: sesame", "engine.flags.hf-token: this flag holds a secret", "shell"),
        ("load-format: dummy", "enforce-eager:", "engine.flags.enforce-eager: has no value", "true or false"),
        ("load-format: dummy", "max-num-seqs: 4", "engine.flags.max-num-seqs: parameter max-num-seqs searches", ""),
        ("OMP_NUM_THREADS: 2", "HF_TOKEN: sesame", "engine.env.HF_TOKEN: looks like a secret", "shell"),
        ("OMP_NUM_THREADS: 2", "DB: postgres://u:sesame@h/d", "engine.env.DB: looks like a secret", "shell"),
        ("OMP_NUM_THREADS: 2", "A: yes", "engine.env.A: True must be text", "quotes"),
        (
            "OMP_NUM_THREADS: 2",
            "VLLM_ENABLE_STARTUP_PLAN: 1",
            "engine.env.VLLM_ENABLE_STARTUP_PLAN: may not be set",
            "",
        ),
        ("max-num-seqs <= 64", "max-num-seqs <=", "rules.0: 'max-num-seqs <='", "neither a number nor a flag"),
        (
            "max-num-seqs <= 64",
            "max-num-seq <= 64",
            "rules.0: nothing in the space sets the flag 'max-num-seq'",
            "did you mean",
        ),
        ("p99_e2e<=1.0x", "p99_e2e>=1.0x", "'p99_e2e>=1.0x'", "slos.0"),
        ('["p99_e2e<=1.0x"]', '["p99_e2e<=1.0x", "p99_e2e_ms=5"]', "the limits", "slos"),
        ("vllm serve tiny-kv", "vllm bench", "baseline: expected `serve` after `vllm`, not 'bench'", ""),
        ("model: tiny-kv", "model: tiny-kw", "model: model 'tiny-kw'", "did you mean tiny-kv?"),
        ("model: tiny-kv", "model: ./nowhere", "model: model './nowhere': there is no such directory", ""),
        ("name: mine", "name: My Space", "name: 'My Space'", "pattern"),
        ("name: mine", "name: mine\ntrials: 1", "trials: 1", "greater than or equal to 2"),
        ("name: mine", "name: mine\ntrials: '20'", "trials: '20'", "integer"),
        ("  block-size:", "  max-num-seqs:", "line 15, column 3: the key max-num-seqs stands there twice", "line 11"),
        ("  block-size:", "  on:", "line 15, column 3: the key on is not text", "quotes"),
        ("[16, 32]", "[16, 32", "line 18, column 6: this is not YAML", ""),
        ("name: mine", "name: mine: x", "line 1, column 11: this is not YAML", ""),
        ("  block-size:", "  x y:", "parameters.x y: a name has letters", ""),
        (
            "    high: 64",
            "    high: 64\n    when: {block-sise: 16}",
            "parameters.max-num-seqs.when.block-sise:",
            "did you mean block-size?",
        ),
        ("  block-size:\n", "  stream-interval:\n", "parameters.stream-interval: flag stream-interval may not", ""),
    ],
)
def test_a_mistake_is_told_with_file_key_and_value(tmp_path, old, new, start, also):
    assert GOOD.count(old) == 1
    message = refused(tmp_path, GOOD.replace(old, new))
    assert message.startswith(start)
    assert also in message
    assert "sesame" not in message


def test_several_mistakes_are_told_at_once(tmp_path):
    message = refused(tmp_path, GOOD.replace("low: 2", "low: x").replace("device: cpu", "device: tpu"))
    assert "engine.device" in message
    assert "parameters.max-num-seqs.low" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("- a\n", "it is a list"),
        ("a: [\n", "this is not YAML"),
        ("a: \x01", "not YAML"),
        ("{}", "name"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, text, words):
    assert words in refused(tmp_path, text)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_space(str(path))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.yaml: there is no such file"):
        load_space(str(tmp_path / "nothing.yaml"))
    with pytest.raises(InputError, match="cannot be read"):
        load_space(str(tmp_path))


def test_an_unknown_space_lists_the_built_in_ones_and_the_nearest():
    with pytest.raises(InputError) as caught:
        load_space("tiny-cpi")
    assert caught.value.message == "there is no space 'tiny-cpi'; did you mean tiny-cpu?"
    assert "qwen13b, tiny-cpu" in (caught.value.hint or "")


def test_the_built_in_spaces_are_sound():
    spaces = {space.name: space for space in built_in_spaces()}
    assert set(spaces) >= {"qwen13b", "tiny-cpu"}
    for name, space in spaces.items():
        assert load_space(name) == space
        searched = space.search_space()
        defaults = {key: p.default for key, p in searched.parameters.items() if p.default is not None}
        flags = searched.flags(defaults, device_memory_bytes=64 * 2**30)
        assert searched.broken_rules(flags) == ()
        for key, parameter in searched.parameters.items():
            assert parameter.when or parameter.default is not None, key


def test_every_default_of_the_tiny_space_leaves_room_for_its_traffic():
    space = load_space("tiny-cpu")
    assert space.workload.longest_request_tokens <= min(space.search_space().parameters["max-model-len"].values)
