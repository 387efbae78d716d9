from __future__ import annotations

import json

import pytest

from optimizer.config import build_study_config, identity_difference, load_space
from optimizer.core.errors import InputError

GIB = 2**30
WORKLOAD = """\
name: long
arrivals: {kind: closed_loop, in_flight: 4}
prompt_tokens: {kind: fixed, tokens: 3000}
output_tokens: {kind: fixed, tokens: 16}
warmup: {requests: 4, max_s: 5}
window: {min_s: 5, max_s: 10, min_requests: 10}
"""


@pytest.fixture(scope="module")
def tiny():
    return load_space("tiny-cpu")


def test_the_space_alone_is_enough(tiny):
    config = build_study_config(tiny)
    assert (config.study, config.trials, config.seed) == ("tiny-cpu", tiny.trials, 0)
    assert [str(slo) for slo in config.slos] == ["p95_e2e<=1x"]
    assert config.objective.name == "throughput"
    assert config.model.name == "tiny-kv"
    assert config.notes == ()


def test_memory_in_gib_becomes_a_fraction_unless_a_parameter_sets_it(tiny):
    config = build_study_config(tiny)
    default = config.resolve({}, device_memory_bytes=17 * GIB)
    assert default.flags["gpu-memory-utilization"] == 0.1
    searched = config.resolve({"engine-memory": 2.1}, device_memory_bytes=21 * GIB)
    assert searched.flags["gpu-memory-utilization"] == 0.1
    assert searched.flags["load-format"] == "dummy"
    assert searched.engine == "vllm"


@pytest.mark.parametrize(("memory", "words"), [(None, "is not known"), (GIB, r"more than this host has \(1\.0 GiB\)")])
def test_memory_that_is_not_to_be_had_is_an_error(tiny, memory, words):
    with pytest.raises(InputError, match=words):
        build_study_config(tiny).resolve({}, device_memory_bytes=memory)


def test_the_baseline_stands_on_the_fixed_flags(tiny):
    config = build_study_config(tiny, baseline="A=1 vllm serve tiny-kv --max-num-seqs 512 --no-enforce-eager --port 1")
    engine = config.baseline_config(device_memory_bytes=17 * GIB)
    assert dict(engine.flags) == {
        "dtype": "float32",
        "enforce-eager": False,
        "gpu-memory-utilization": 0.1,
        "load-format": "dummy",
        "max-num-seqs": 512,
    }
    assert dict(engine.env) == {"A": "1", "HF_HUB_OFFLINE": "1"}
    assert config.notes == ("the baseline's port is left out: it belongs to a deployment",)
    params, outside = config.baseline_params(device_memory_bytes=17 * GIB)
    assert params == {"engine-memory": 1.7, "speculation": "none"}
    assert outside == ("max-num-seqs",)


def test_a_baseline_with_another_model_needs_the_model_to_be_chosen(tiny):
    with pytest.raises(InputError) as caught:
        build_study_config(tiny, baseline="vllm serve org/other")
    assert "--baseline: it serves 'org/other', but the study's model is 'tiny-kv'" in caught.value.message
    assert caught.value.hint == "add --model org/other to tune that one"
    config = build_study_config(tiny, baseline="vllm serve org/other", model="org/local")
    assert config.notes == ("the baseline is measured with org/local, not with its own model org/other",)
    assert build_study_config(tiny, model="org/local").notes == ()


def test_set_fixes_a_flag_and_takes_it_out_of_the_search(tiny):
    config = build_study_config(tiny, set_flags=("max-num-seqs=200", "dtype=bfloat16", "enforce-eager=false"))
    assert "max-num-seqs" not in config.space.parameters
    flags = config.resolve({}, device_memory_bytes=24 * GIB).flags
    assert (flags["max-num-seqs"], flags["dtype"], flags["enforce-eager"]) == (200, "bfloat16", False)
    assert config.notes == ("parameter max-num-seqs is no longer searched: --set fixed max-num-seqs",)


def test_set_pins_a_conditional_flag_where_it_exists(tiny):
    config = build_study_config(tiny, set_flags=("speculative-config.num_speculative_tokens=3",))
    assert "speculative-config" not in config.resolve({}, device_memory_bytes=24 * GIB).flags
    on = config.resolve({"speculation": "ngram", "num-speculative-tokens": "3"}, device_memory_bytes=24 * GIB)
    assert on.flags["speculative-config"]["num_speculative_tokens"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seqs", "--set max-num-seqs: this is not FLAG=VALUE"),
        ("=4", "--set =4: this is not FLAG=VALUE"),
        ("max-num-seqs=", "--set max-num-seqs=: this is not FLAG=VALUE"),
        ("stream-interval=4", "--set stream-interval=4: the flag stream-interval may not be set"),
        ("--ssl_keyfile=x", "the flag ssl-keyfile may not be set"),
        ("hf-token=sesame", "--set hf-token: this flag holds a secret"),
        ("model=x", "--set model=x: the model is no flag"),
        ("speculative-config={a", "--set speculative-config: the value of speculative-config is broken JSON: {a"),
    ],
)
def test_a_wrong_set_is_refused(tiny, text, words):
    with pytest.raises(InputError) as caught:
        build_study_config(tiny, set_flags=(text,))
    assert words in caught.value.message
    assert "sesame" not in caught.value.message


@pytest.mark.parametrize("trials", [1, 0, -3])
def test_a_study_has_at_least_baseline_and_defaults(tiny, trials):
    with pytest.raises(InputError, match=rf"--trials {trials}: .*at least 2.*baseline.*defaults"):
        build_study_config(tiny, trials=trials)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"objective": "thruput"}, "--objective thruput: not known; did you mean throughput?"),
        ({"slos": ("p99_e2e_ms=5", "p99_e2e<=1x")}, "--slo"),
        ({"slos": ("p98",)}, "'p98' (--slo)"),
        ({"baseline": "sglang"}, "--baseline: 'sglang'"),
        ({"model": "./none"}, "--model: model './none'"),
        ({"study": " "}, "--study ' '"),
        ({"study": "a/b"}, "--study 'a/b'"),
        ({"workload": "/none.yaml"}, "/none.yaml: there is no such file"),
    ],
)
def test_a_wrong_override_names_the_option_and_the_value(tiny, override, words):
    with pytest.raises(InputError) as caught:
        build_study_config(tiny, **override)
    assert words in caught.value.message


def test_a_workload_file_replaces_the_traffic_and_raises_the_least_context_cap(tiny, tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD, encoding="utf-8")
    config = build_study_config(tiny, workload=str(path))
    assert config.workload.name == "long"
    (broken,) = config.space.broken_rules({"max-model-len": 2048})
    assert "max-model-len >= 3016" in broken
    path.write_text(WORKLOAD.replace("in_flight: 4", "in_flight: 0"), encoding="utf-8")
    with pytest.raises(InputError, match=r"w\.yaml: arrivals\.in_flight: 0"):
        build_study_config(tiny, workload=str(path))


def test_a_built_in_workload_is_taken_by_name(tiny):
    assert build_study_config(tiny, workload="mixed-lengths").workload.arrivals.kind == "poisson"
    with pytest.raises(InputError, match="there is no workload 'mixed'"):
        build_study_config(tiny, workload="mixed")


def test_a_file_of_requests_is_part_of_the_identity_by_its_content(tiny, tmp_path):
    path, rows = tmp_path / "w.yaml", tmp_path / "rows.jsonl"
    lengths = [line for line in WORKLOAD.splitlines() if "_tokens:" not in line]
    path.write_text("\n".join([*lengths, "source: {kind: jsonl, path: rows.jsonl}"]), encoding="utf-8")
    rows.write_text('{"prompt": [1, 2], "output_tokens": 3}\n', encoding="utf-8")
    before = build_study_config(tiny, workload=str(path)).identity()
    assert build_study_config(tiny, workload=str(path)).identity() == before
    rows.write_text('{"prompt": [1, 2, 3], "output_tokens": 3}\n', encoding="utf-8")
    changed = identity_difference(before, build_study_config(tiny, workload=str(path)).identity())
    assert [line for line in changed if line.startswith("workload.")] == [changed[-1]]
    assert changed[-1].startswith("workload.source.sha256: ")


def test_a_workload_of_text_needs_a_model_with_a_tokenizer(tiny, tmp_path):
    path, model = tmp_path / "w.yaml", tmp_path / "model"
    path.write_text(WORKLOAD + "\ncontent: text\n", encoding="utf-8")
    assert build_study_config(tiny, workload=str(path)).workload.content == "text"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="tokenizer missing: the workload sends text"):
        build_study_config(tiny, workload=str(path), model=str(model))


def test_the_identity_is_json_and_leaves_the_total_and_the_name_out(tiny):
    one = build_study_config(tiny).identity()
    assert json.loads(json.dumps(one)) == one
    assert build_study_config(tiny, trials=99, study="other").identity() == one
    assert build_study_config(tiny, seed=1).identity() != one
    json.dumps(build_study_config(tiny).as_dict())


def test_the_identity_survives_json_and_shows_each_change_on_a_line(tiny):
    old = json.loads(json.dumps(build_study_config(tiny).identity()))
    assert identity_difference(old, build_study_config(tiny).identity()) == []
    new = json.loads(json.dumps(old))
    new["parameters"]["max-num-seqs"]["high"] = 64
    del new["parameters"]["block-size"]
    new["slos"] = []
    new["engine"]["flags"]["dtype"] = "half"
    assert identity_difference(old, new) == [
        "parameters.max-num-seqs.high: 128 -> 64",
        'parameters.block-size: {"choices": [32, 64, 128], "default": 128, "kind": "choice"} -> (absent)',
        'engine.flags.dtype: "float32" -> "half"',
        'slos: ["p95_e2e<=1x"] -> []',
    ]


def test_no_secret_of_the_baseline_reaches_the_record(tiny):
    config = build_study_config(tiny, baseline="HF_TOKEN=sesame vllm serve --api-key sesame --hf-token sesame tiny-kv")
    assert "sesame" not in json.dumps(config.as_dict())
    assert "sesame" not in repr(config)


def test_a_note_says_why_a_flag_of_the_baseline_is_left_out(tiny):
    config = build_study_config(
        tiny, baseline="HF_TOKEN=x vllm serve tiny-kv --stream-interval 4 --disable-log-requests"
    )
    because = {note.split(" is left out: ")[0].removeprefix("the baseline's "): note for note in config.notes}
    assert "measured ITL" in because["stream-interval"]
    assert "belongs to a deployment" in because["disable-log-requests"]
    assert "secret" in because["HF_TOKEN"]
