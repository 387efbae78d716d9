"""Flags in canonical form, and fingerprints that are equal exactly when the settings are."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.engine_config import EngineConfig, canonical_flag

names = st.text(st.sampled_from("ab-_."), max_size=8)
scalars = (
    st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5]) | st.sampled_from(["", "1", "true", "a"])
)
settings = st.recursive(
    scalars | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
).filter(lambda value: value is not None)
configs = st.builds(
    EngineConfig,
    engine=st.sampled_from(["vllm", "simulated"]),
    model=st.sampled_from(["m", "n"]),
    flags=st.dictionaries(st.sampled_from(["a", "b-c"]), settings, max_size=2),
    env=st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["", "1"]), max_size=2),
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("--max-num-seqs", "max-num-seqs"),
        ("max_num_seqs", "max-num-seqs"),
        ("-tp", "tp"),
        ("speculative_config.num_speculative_tokens", "speculative-config.num_speculative_tokens"),
        ("_", ""),
        ("--_x", "x"),
        ("a__b", "a--b"),
    ],
)
def test_one_spelling(written, canonical):
    assert canonical_flag(written) == canonical


@given(names)
def test_the_canonical_spelling_stays_as_it_is(name):
    once = canonical_flag(name)
    assert canonical_flag(once) == once
    assert not once.startswith("-")
    assert "_" not in once.partition(".")[0]


@given(configs, configs)
def test_fingerprints_are_equal_exactly_when_the_configs_are(one, other):
    same_data = json.dumps(one.as_dict(), sort_keys=True) == json.dumps(other.as_dict(), sort_keys=True)
    assert (one.fingerprint == other.fingerprint) == same_data
    assert (one == other) == same_data
    assert one != other or hash(one) == hash(other)


@pytest.mark.parametrize("value", [True, 1.0, "1", [1]])
def test_a_value_of_another_type_is_another_engine(value):
    plain = EngineConfig("vllm", "m", {"x": 1})
    assert EngineConfig("vllm", "m", {"x": value}) != plain


def test_spelling_and_order_of_flags_do_not_matter():
    one = EngineConfig("vllm", "m", {"max_num_seqs": 8, "block-size": 16}, {"A": "1", "B": "2"})
    other = EngineConfig("vllm", "m", {"--block-size": 16, "max-num-seqs": 8}, {"B": "2", "A": "1"})
    assert one == other
    assert list(one.flags) == ["block-size", "max-num-seqs"]


def test_a_config_cannot_be_changed():
    flags = {"x": 1}
    config = EngineConfig("vllm", "m", flags)
    flags["x"] = 2
    assert config.flags["x"] == 1
    with pytest.raises(TypeError):
        config.flags["x"] = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model = "n"  # type: ignore[misc]


def test_a_config_is_never_equal_to_something_else():
    assert EngineConfig("vllm", "m") != "m"
