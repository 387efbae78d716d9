from __future__ import annotations

from optimizer.search_spaces import BoolParameter, ChoiceParameter, IntParameter, SearchSpace, fix_flags

SPACE = SearchSpace(
    {
        "tokens": IntParameter(
            kind="int", low=1, high=4, flag="speculative-config.num_speculative_tokens", when={"speculation": "ngram"}
        ),
        "speculation": ChoiceParameter(
            kind="choice", sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}}
        ),
        "async-scheduling": BoolParameter(kind="bool", when={"speculation": "none"}),
        "max-num-seqs": IntParameter(kind="int", low=1, high=64),
    }
)


def test_a_fixed_flag_leaves_the_space_with_a_note():
    narrowed = fix_flags(SPACE, {"max-num-seqs": 200}, origin="--set")
    assert list(narrowed.space.parameters) == ["tokens", "speculation", "async-scheduling"]
    assert narrowed.notes == ("parameter max-num-seqs is no longer searched: --set fixed max-num-seqs",)
    assert narrowed.pinned_flags == ()


def test_what_depends_on_a_fixed_parameter_stays_where_its_condition_is_met():
    narrowed = fix_flags(SPACE, {"speculative-config": {"method": "ngram"}}, origin="--set")
    assert list(narrowed.space.parameters) == ["tokens", "max-num-seqs"]
    assert narrowed.space.parameters["tokens"].when == {}
    assert "async-scheduling is no longer searched: it depends on speculation" in narrowed.notes[1]


def test_what_depends_on_a_fixed_parameter_goes_where_its_condition_is_not_met():
    narrowed = fix_flags(SPACE, {"speculative-config": {"method": "eagle"}}, origin="--set")
    assert list(narrowed.space.parameters) == ["max-num-seqs"]


def test_a_conditional_parameter_is_pinned_and_keeps_its_condition():
    narrowed = fix_flags(SPACE, {"speculative-config": {"num_speculative_tokens": 3}}, origin="--set")
    assert narrowed.pinned_flags == ("speculative-config.num_speculative_tokens",)
    params = {"speculation": "ngram", "tokens": "3"}
    assert narrowed.space.flags(params, device_memory_bytes=None) == {
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 3}
    }
    assert narrowed.space.flags({"speculation": "none", "tokens": "3"}, device_memory_bytes=None) == {}


def test_a_pinned_switch_carries_its_own_dependants():
    space = SearchSpace(
        {
            "a": BoolParameter(kind="bool"),
            "b": BoolParameter(kind="bool", when={"a": True}),
            "c": BoolParameter(kind="bool", when={"b": True}),
            "d": BoolParameter(kind="bool", when={"b": False}),
        }
    )
    narrowed = fix_flags(space, {"b": True}, origin="--set")
    assert list(narrowed.space.parameters) == ["a", "b", "c"]
    assert narrowed.space.active({"a": True, "b": "true"}) == ("a", "b", "c")


def test_nothing_fixed_changes_nothing():
    assert fix_flags(SPACE, {"enforce-eager": True}, origin="--set").space == SPACE
