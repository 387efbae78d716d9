from __future__ import annotations

import pytest

from optimizer.core.errors import InputError
from optimizer.search_spaces import BUILT_IN_RULES, IntParameter, Rule, SearchSpace, denied_reason

SPACE = SearchSpace({"max-num-seqs": IntParameter(kind="int", low=1, high=2000)})


@pytest.mark.parametrize(
    ("text", "flags", "holds"),
    [
        ("max-num-batched-tokens >= max-num-seqs", {"max-num-batched-tokens": 8, "max-num-seqs": 8}, True),
        ("max-num-batched-tokens >= max-num-seqs", {"max-num-batched-tokens": 7, "max-num-seqs": 8}, False),
        ("max-num-batched-tokens > max-num-seqs", {"max-num-batched-tokens": 8, "max-num-seqs": 8}, False),
        ("max-num-seqs*8 <= max-num-batched-tokens", {"max-num-batched-tokens": 63, "max-num-seqs": 8}, False),
        ("8 * max-num-seqs <= max-num-batched-tokens", {"max-num-batched-tokens": 64, "max-num-seqs": 8}, True),
        ("max_num_seqs < 8", {"max-num-seqs": 8}, False),
        ("max-num-seqs != 8", {"max-num-seqs": 8}, False),
        ("max-num-seqs == 8", {"max-num-seqs": 8}, True),
        ("0.5 <= gpu-memory-utilization", {"gpu-memory-utilization": 0.4}, False),
        ("speculative-config.num_speculative_tokens < 4", {"speculative-config": {"num_speculative_tokens": 4}}, False),
        ("max-num-seqs < 8", {}, True),
        ("max-model-len < 8", {"max-model-len": "auto"}, True),
        ("enforce-eager < 1", {"enforce-eager": True}, True),
    ],
)
def test_a_rule_compares_flags_and_holds_where_one_is_not_a_number(text, flags, holds):
    assert (Rule.parse(text).broken_by(flags) is None) is holds


def test_a_broken_rule_says_both_values():
    flags = {"max-num-batched-tokens": 63, "max-num-seqs": 8}
    assert Rule.parse("max-num-seqs * 8 <= max-num-batched-tokens").broken_by(flags) == (
        "max-num-seqs * 8 <= max-num-batched-tokens does not hold: max-num-seqs is 8 and max-num-batched-tokens is 63"
    )


@pytest.mark.parametrize(
    "text", ["max-num-seqs", "1 < 2", "a < b < c", "a + b < c", "a ** 2 < c", "a <", "a = b", "", "a * b < c", "-a < b"]
)
def test_what_is_no_rule_is_refused_with_its_text(text):
    with pytest.raises(InputError) as caught:
        Rule.parse(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max-num-batched-tokens": 512, "max-num-seqs": 1024}, "max-num-seqs is 1024"),
        (
            {"max-num-batched-tokens": 512, "max-model-len": 1024, "enable-chunked-prefill": False},
            "enable-chunked-prefill false",
        ),
        ({"long-prefill-token-threshold": 2048, "max-model-len": 1024}, "long-prefill-token-threshold is 2048"),
        ({"max-num-scheduled-tokens": 2048, "max-num-batched-tokens": 1024}, "max-num-scheduled-tokens is 2048"),
        ({"max-num-active-seqs": 9, "max-num-seqs": 8}, "max-num-active-seqs is 9"),
        ({"gpu-memory-utilization": 1.2}, "gpu-memory-utilization is 1.2"),
        ({"gpu-memory-utilization": 0.0}, "gpu-memory-utilization is 0.0"),
        ({"speculative-config": {"prompt_lookup_min": 5, "prompt_lookup_max": 4}}, "prompt_lookup_min is 5"),
    ],
)
def test_vllms_own_rules_hold_in_every_space(flags, words):
    (sentence,) = SPACE.broken_rules(flags)
    assert words in sentence


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"max-num-batched-tokens": 512, "max-model-len": 1024},
        {"max-num-batched-tokens": 512, "max-model-len": 1024, "enable-chunked-prefill": True},
        {"gpu-memory-utilization": 1.0},
    ],
)
def test_a_sound_setting_breaks_no_rule(flags):
    assert SPACE.broken_rules(flags) == ()


def test_the_rules_of_a_space_come_on_top():
    space = SearchSpace(SPACE.parameters, (Rule.parse("max-num-seqs <= 64"),))
    assert space.broken_rules({"max-num-seqs": 65}) == ("max-num-seqs <= 64 does not hold: max-num-seqs is 65",)
    assert len({rule.text for rule in BUILT_IN_RULES}) == len(BUILT_IN_RULES)


@pytest.mark.parametrize(
    "flag",
    ["stream-interval", "--stream_interval", "max-num-queued-reqs", "max-num-queued-tokens", "disable-log-stats",
     "host", "port", "api-key", "served-model-name", "uds", "ssl-keyfile", "no-disable-log-stats"],
)  # fmt: skip
def test_flags_that_game_the_score_or_belong_to_the_tool_are_denied(flag):
    assert denied_reason(flag)


@pytest.mark.parametrize("flag", ["max-num-seqs", "speculative-config.method", "async-scheduling"])
def test_other_flags_are_not_denied(flag):
    assert denied_reason(flag) is None
