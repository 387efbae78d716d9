"""First settings: legal in any space, derived from the traffic, each with an idea of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.search_spaces import GIB, BoolParameter, ChoiceParameter, FloatParameter, IntParameter, SearchSpace
from optimizer.tuning.first_trials import first_settings
from tests.greybox_on_grid import DEVICE_BYTES, tiny_facts
from tests.unit.tuning.greybox.made import CARD, facts

SPACE = SearchSpace(
    {
        "share": FloatParameter(
            kind="float", flag="gpu-memory-utilization", low=0.5, high=0.98, step=0.01, default=0.92
        ),
        "seats": ChoiceParameter(kind="choice", flag="max-num-seqs", choices=(8, 16, 32, 64, 128, 256), default=256),
        "budget": IntParameter(kind="int", flag="max-num-batched-tokens", low=256, high=32_768, log=True, default=8192),
        "context": ChoiceParameter(kind="choice", flag="max-model-len", choices=(2048, 4096, 8192, 32_768)),
        "reuse": BoolParameter(kind="bool", flag="enable-prefix-caching", default=False),
        "block": ChoiceParameter(kind="choice", flag="block-size", choices=(16, 32, 64, 128), default=128),
        "guess": ChoiceParameter(
            kind="choice",
            sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}},
            default="none",
        ),
        "guesses": IntParameter(
            kind="int", flag="speculative-config.num_speculative_tokens", low=1, high=8, when={"guess": "ngram"}
        ),
    }
)


def found(space: SearchSpace = SPACE, **options: Any) -> list[Any]:
    return first_settings(space, options.pop("of", CARD), options.pop("baseline", {}), **options)


def test_each_setting_has_an_idea_of_its_own():
    told = found()
    assert [one.reason.partition(":")[0] for one in told] == [
        "throughput first",
        "latency first",
        "guess tokens ahead, else as for latency",
        "memory first",
    ]
    assert all("\n" not in one.reason for one in told)
    wide, latency, guessing, safe = (one.params for one in told)
    assert wide["budget"] > latency["budget"]
    assert safe["share"] < wide["share"]
    assert guessing == {**latency, "guess": "ngram", "guesses": 3}


@pytest.mark.parametrize(("device_gib", "share"), [(200, 0.95), (50, 0.93), (16, 0.9)])
def test_a_small_card_keeps_room_for_what_an_engine_takes_beside_its_share(device_gib, share):
    wide = found(of=facts(device_bytes=device_gib * GIB))[0]
    assert wide.params["share"] == pytest.approx(share, abs=0.0051)


def test_they_are_cut_to_the_traffic():
    for one in found():
        # 1.5 times 3170 tokens, rounded up.
        assert one.params["context"] == 8192
        assert one.params["seats"] == 64
        assert one.params["reuse"] is True
        # 1000 tokens: 992 are found again in blocks of 16 and 32, 960 in larger ones.
        assert one.params["block"] == 32


def test_the_context_is_never_below_the_longest_request():
    for one in found(of=facts(request_tokens_p99=100.0, longest_request_tokens=8000)):
        assert one.params["context"] == 8192


def test_requests_at_once_are_those_that_the_pool_holds():
    # 400 prompt tokens of its own and half an answer, beside one shared prefix.
    told = found(pool_tokens=lambda params: 1000.0 + 40 * 515.0)
    assert [one.params["seats"] for one in told if one.reason.startswith("throughput")] == [32]
    assert [one.params["seats"] for one in told if one.reason.startswith("memory")] == [8]


def test_it_leaves_room_for_what_else_is_on_the_card():
    told = found(other_bytes=0.3 * 80 * 2**30)
    assert max(one.params["share"] for one in told) == 0.68


def test_traffic_that_shares_nothing_leaves_the_cache_as_it_is():
    for one in found(of=facts(shared_prefix_tokens=0, shared_prefixes=0)):
        assert one.params["reuse"] is False
        assert one.params["block"] == 128


def test_a_space_that_has_nothing_of_it_gets_no_settings():
    space = SearchSpace({"scheduling-policy": ChoiceParameter(kind="choice", choices=("fcfs", "priority"))})
    assert found(space) == []


def test_nothing_is_told_twice():
    space = SearchSpace({"max-model-len": ChoiceParameter(kind="choice", choices=(4096, 8192, 16_384), default=16_384)})
    assert [one.params for one in found(space)] == [{"max-model-len": 8192}]
    assert found(space, baseline={"max-model-len": 8192}) == []


def test_a_setting_that_breaks_a_rule_gives_way_to_its_neighbour():
    told = found(accepts=lambda params: params["seats"] <= 32)
    assert len(told) == 4
    assert {one.params["seats"] for one in told} == {32}
    assert found(accepts=lambda params: False) == []


def test_a_space_without_anything_acceptable_is_given_up_soon():
    asked: list[int] = []

    def accepts(params: Any) -> bool:
        asked.append(1)
        return False

    assert found(accepts=accepts) == []
    assert len(asked) <= 4 * 101


@pytest.mark.parametrize("name", ["tiny-cpu", "qwen13b"])
def test_built_in_spaces_get_settings_that_keep_their_rules(name):
    config = study_config(RunRequest(space=name))
    memory = DEVICE_BYTES if name == "tiny-cpu" else None
    of = tiny_facts() if name == "tiny-cpu" else CARD
    baseline, _ = config.baseline_params(device_memory_bytes=memory)
    told = first_settings(config.space, of, baseline)
    assert len(told) == 4
    for one in told:
        config.space.check(one.params)
        assert settings_of(config).broken_rules(one.params) == ()


FLAGS = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "gpu-memory-utilization",
    "block-size",
    "enable-prefix-caching",
    "long-prefill-token-threshold",
    "max-cudagraph-capture-size",
    "kv-cache-dtype",
    "scheduling-policy",
)


@st.composite
def parameters(draw: st.DrawFn, flag: str) -> Any:
    kind = draw(st.sampled_from(("int", "float", "choice", "words", "bool")))
    low = draw(st.integers(1, 5000))
    if kind == "int":
        step = draw(st.integers(1, 7))
        high = low + step * draw(st.integers(1, 500))
        return IntParameter(kind="int", flag=flag, low=low, high=high, step=step)
    if kind == "float":
        most, in_gib = draw(st.floats(0.2, 3.0)), draw(st.booleans())
        return FloatParameter(kind="float", flag=flag, low=0.1, high=most, unit="GiB" if in_gib else None)
    if kind == "choice":
        numbers = draw(st.lists(st.integers(1, 40_000), min_size=1, max_size=6, unique=True))
        return ChoiceParameter(kind="choice", flag=flag, choices=tuple(numbers), default=draw(st.sampled_from(numbers)))
    if kind == "words":
        return ChoiceParameter(kind="choice", flag=flag, choices=("auto", "other"))
    return BoolParameter(kind="bool", flag=flag)


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    names = draw(st.lists(st.sampled_from(FLAGS), min_size=1, max_size=len(FLAGS), unique=True))
    held = {f"p{place}": draw(parameters(flag)) for place, flag in enumerate(names)}
    if draw(st.booleans()):
        held["guess"] = ChoiceParameter(kind="choice", sets={"no": {}, "yes": {"speculative-config.method": "ngram"}})
        held["more"] = IntParameter(
            kind="int", flag="speculative-config.num_speculative_tokens", low=4, high=6, when={"guess": "yes"}
        )
    return SearchSpace(held)


@settings(max_examples=80)
@given(
    space=spaces(),
    prompt=st.floats(1.0, 50_000.0),
    shared=st.integers(0, 2000),
    in_flight=st.one_of(st.none(), st.integers(1, 4000)),
    device_bytes=st.one_of(st.none(), st.just(80 * 2**30)),
    pool=st.one_of(st.none(), st.floats(0.0, 1e7)),
)
def test_every_first_setting_is_legal_complete_and_new(space, prompt, shared, in_flight, device_bytes, pool):
    of = facts(
        prompt_tokens_mean=prompt + shared,
        prompt_tokens_p99=2 * prompt + shared,
        request_tokens_p99=2 * prompt + shared + 500,
        longest_request_tokens=int(3 * prompt) + shared + 500,
        shared_prefix_tokens=shared,
        shared_prefixes=int(shared > 0),
        in_flight=in_flight,
        device_bytes=device_bytes,
    )
    told = first_settings(space, of, {}, pool_tokens=lambda params: pool)
    for place, one in enumerate(told):
        space.check(one.params)
        assert set(one.params) == set(space.active(one.params))
        for other in told[:place]:
            assert one.params != other.params
        assert one.params
