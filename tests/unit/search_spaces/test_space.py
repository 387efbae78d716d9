from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces import GIB, Parameter, SearchSpace, get_flag, leaf_flags, merge_flags

READ = TypeAdapter(Parameter)
MEMORY = 24 * GIB


def space(**parameters: dict[str, object]) -> SearchSpace:
    return SearchSpace({name.replace("_", "-"): READ.validate_python(data) for name, data in parameters.items()})


FULL = space(
    max_num_seqs={"kind": "int", "low": 2, "high": 128, "log": True},
    threshold={"kind": "int", "low": 0, "high": 512, "step": 64, "flag": "long-prefill-token-threshold"},
    engine_memory={
        "kind": "float", "low": 0.9, "high": 2.5, "step": 0.1, "unit": "GiB", "flag": "gpu-memory-utilization"
    },
    watermark={"kind": "float", "low": 0.001, "high": 0.5, "log": True},
    enable_prefix_caching={"kind": "bool"},
    block_size={"kind": "choice", "choices": [16, 32, 64]},
    policy={"kind": "choice", "choices": ["fcfs", "priority"], "flag": "scheduling-policy"},
    speculation={
        "kind": "choice",
        "sets": {
            "none": {},
            "ngram": {"speculative-config.method": "ngram", "speculative-config.prompt_lookup_max": 4},
            "suffix": {"speculative-config": {"method": "suffix"}},
        },
    },
    ngram_tokens={
        "kind": "int", "low": 1, "high": 4, "flag": "speculative-config.num_speculative_tokens",
        "when": {"speculation": "ngram"},
    },
    suffix_tokens={
        "kind": "int", "low": 8, "high": 32, "flag": "speculative-config.num_speculative_tokens",
        "when": {"speculation": "suffix"},
    },
    rejection={
        "kind": "choice", "choices": ["standard", "block"], "flag": "speculative-config.rejection_sample_method",
        "when": {"ngram-tokens": 4},
    },
    async_scheduling={"kind": "bool", "when": {"speculation": "none"}},
)  # fmt: skip


@st.composite
def params_of_full(draw: st.DrawFn) -> dict[str, object]:
    """A value for each parameter, those that do not exist included."""
    return {
        "max-num-seqs": draw(st.integers(2, 128)),
        "threshold": 64 * draw(st.integers(0, 8)),
        "engine-memory": round(0.9 + 0.1 * draw(st.integers(0, 16)), 6),
        "watermark": float(f"{draw(st.floats(0.001, 0.5)):.6g}"),
        "enable-prefix-caching": draw(st.booleans()),
        "block-size": draw(st.sampled_from([16, 32, 64])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "speculation": draw(st.sampled_from(["none", "ngram", "suffix"])),
        "ngram-tokens": draw(st.integers(1, 4)),
        "suffix-tokens": draw(st.integers(8, 32)),
        "rejection": draw(st.sampled_from(["standard", "block"])),
        "async-scheduling": draw(st.booleans()),
    }


@given(params_of_full(), st.integers(3, 400))
def test_params_read_back_from_their_own_flags(params, memory_gib):
    memory = memory_gib * GIB
    flags = FULL.flags(params, device_memory_bytes=memory)
    read, outside = FULL.params_from_flags(flags, device_memory_bytes=memory)
    assert outside == ()
    assert read == {name: params[name] for name in FULL.active(params)}
    assert FULL.flags(read, device_memory_bytes=memory) == flags


@given(st.floats(0.9, 2.5), st.integers(3, 4000))
def test_gib_without_a_step_read_back_as_the_same_fraction(gib, memory_gib):
    free = space(memory={"kind": "float", "low": 0.9, "high": 2.5, "unit": "GiB", "flag": "gpu-memory-utilization"})
    memory = memory_gib * GIB
    flags = free.flags({"memory": gib}, device_memory_bytes=memory)
    read, outside = free.params_from_flags(flags, device_memory_bytes=memory)
    assert outside == ()
    assert free.flags(read, device_memory_bytes=memory) == flags


@given(params_of_full())
def test_a_parameter_that_does_not_exist_sets_no_flag(params):
    flags = FULL.flags(params, device_memory_bytes=MEMORY)
    assert ("async-scheduling" in flags) == (params["speculation"] == "none")
    assert ("speculative-config" in flags) == (params["speculation"] != "none")
    tokens = {"none": None, "ngram": params["ngram-tokens"], "suffix": params["suffix-tokens"]}[params["speculation"]]
    assert get_flag(flags, "speculative-config.num_speculative_tokens") == tokens
    rejected = params["speculation"] == "ngram" and params["ngram-tokens"] == 4
    assert (get_flag(flags, "speculative-config.rejection_sample_method") is not None) == rejected


JSON_OBJECTS = st.dictionaries(
    st.sampled_from("abc"), st.integers() | st.dictionaries(st.sampled_from("xy"), st.integers())
)


@given(JSON_OBJECTS, JSON_OBJECTS)
def test_merging_keeps_every_key_and_the_upper_value(below, above):
    before = json.dumps(below)
    merged = merge_flags({"f": below}, {f"f.{key}": value for key, value in above.items()})
    for leaf in leaf_flags({"f": above}) if above else ():
        if get_flag({"f": above}, leaf) != {}:
            assert get_flag(merged, leaf) == get_flag({"f": above}, leaf)
    inner = merged["f"]
    assert isinstance(inner, dict)
    assert set(below) | set(above) == set(inner)
    assert json.dumps(below) == before


def test_active_is_in_declaration_order_and_follows_chains():
    names = FULL.active({"speculation": "ngram", "ngram-tokens": 4})
    assert names[-3:] == ("speculation", "ngram-tokens", "rejection")
    assert "rejection" not in FULL.active({"speculation": "suffix", "ngram-tokens": 4})
    assert FULL.active({})[-1] == "speculation"


def test_of_a_draft_only_what_exists_beside_the_rest_is_kept():
    draft: dict[str, ParamValue] = {
        "rejection": "block",
        "speculation": "suffix",
        "ngram-tokens": 4,
        "suffix-tokens": 8,
        "block-size": 16,
    }
    assert FULL.existing(draft) == {"block-size": 16, "speculation": "suffix", "suffix-tokens": 8}


def test_resolve_puts_the_params_on_top_of_the_fixed_flags():
    config = FULL.resolve(
        {"max-num-seqs": 8, "speculation": "ngram", "ngram-tokens": 2},
        engine="vllm",
        model="m",
        fixed_flags={"enforce-eager": True, "speculative-config": {"method": "x", "prompt_lookup_min": 2}},
        env={"A": "1"},
        device_memory_bytes=None,
    )
    assert dict(config.flags) == {
        "enforce-eager": True,
        "max-num-seqs": 8,
        "speculative-config": {
            "method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 2
        },
    }  # fmt: skip
    assert (config.engine, config.model, dict(config.env)) == ("vllm", "m", {"A": "1"})


def test_no_params_set_no_flags():
    assert FULL.flags({}, device_memory_bytes=None) == {}


def test_a_dotted_flag_inside_a_plain_value_is_an_error():
    with pytest.raises(InputError, match=r"cannot set keys inside speculative-config, whose value 'x'"):
        FULL.resolve(
            {"speculation": "ngram"},
            engine="vllm",
            model="m",
            fixed_flags={"speculative-config": "x"},
            env={},
            device_memory_bytes=None,
        )


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max-num-seq": 8}, "max-num-seq = 8 is not in the space"),
        ({"max-num-seqs": 129}, "max-num-seqs = 129 is not in its range"),
        ({"max-num-seqs": True}, "max-num-seqs = True"),
        ({"max-num-seqs": "8"}, "max-num-seqs = '8'"),
        ({"speculation": "eagle"}, "speculation = 'eagle'"),
    ],
)
def test_unknown_params_and_wrong_values_are_refused(params, words):
    with pytest.raises(InputError) as caught:
        FULL.flags(params, device_memory_bytes=MEMORY)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("flags", "params", "outside"),
    [
        ({}, {"speculation": "none"}, ()),
        ({"max-num-seqs": 256}, {"speculation": "none"}, ("max-num-seqs",)),
        ({"max-num-seqs": "auto"}, {"speculation": "none"}, ("max-num-seqs",)),
        ({"max_num_seqs": 64}, {"max-num-seqs": 64, "speculation": "none"}, ()),
        ({"enable-prefix-caching": False}, {"enable-prefix-caching": False, "speculation": "none"}, ()),
        ({"gpu-memory-utilization": 0.92}, {"speculation": "none"}, ("engine-memory",)),
        ({"gpu-memory-utilization": 0.0625}, {"engine-memory": 1.5, "speculation": "none"}, ()),
        ({"speculative-config": {"method": "eagle"}}, {}, ("speculation",)),
        ({"speculative-config": {"method": "ngram", "prompt_lookup_max": 5}}, {}, ("speculation",)),
        (
            {"speculative-config": {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 9}},
            {"speculation": "ngram"},
            ("ngram-tokens",),
        ),
        (
            {"speculative-config": {"method": "suffix", "num_speculative_tokens": 9}, "async-scheduling": True},
            {"speculation": "suffix", "suffix-tokens": 9},
            ("async-scheduling",),
        ),
    ],
)
def test_a_users_flags_are_read_as_params(flags, params, outside):
    assert FULL.params_from_flags(flags, device_memory_bytes=MEMORY) == (params, outside)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"a": {"kind": "bool", "when": {"b": 1}}, "bb": {"kind": "bool"}},
            "parameters.a.when.b: there is no parameter 'b'",
        ),
        (
            {"a": {"kind": "bool", "when": {"b": 3}}, "b": {"kind": "choice", "choices": [1, 2]}},
            "parameters.a.when.b: 3 is no value of b",
        ),
        (
            {"a": {"kind": "bool", "when": {"b": True}}, "b": {"kind": "bool", "when": {"a": True}}},
            "the conditions run in a circle: a -> b -> a",
        ),
        ({"a": {"kind": "bool", "when": {"a": True}}}, "circle: a -> a"),
        (
            {"a": {"kind": "bool", "flag": "x"}, "b": {"kind": "bool", "flag": "x"}},
            "parameters.b: flag x is also set by parameter a",
        ),
        (
            {"a": {"kind": "bool", "flag": "x.y"}, "b": {"kind": "choice", "sets": {"n": {}, "m": {"x": {"y": 1}}}}},
            "parameters.b: flag x.y is also set by parameter a",
        ),
        ({"a": {"kind": "bool", "flag": "stream-interval"}}, "parameters.a: flag stream-interval may not be searched"),
        ({"host": {"kind": "choice", "choices": ["a"]}}, "parameters.host: flag host may not be searched"),
        (
            {"s": {"kind": "choice", "sets": {"n": {}, "m": {"max_num_queued_reqs": 1}}}},
            "parameters.s: flag max-num-queued-reqs may not be searched",
        ),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_together_are_refused(parameters, words):
    with pytest.raises(InputError) as caught:
        space(**parameters)
    assert words in caught.value.message


def test_the_plain_form_is_json_and_leaves_help_out():
    with_help = space(a={"kind": "bool", "help": "words"})
    assert with_help.as_dict() == {"parameters": {"a": {"kind": "bool"}}, "rules": []}
    assert json.loads(json.dumps(FULL.as_dict())) == FULL.as_dict()
