"""Lengths and workloads: hard ends hold, and a wrong file says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from optimizer.load import LengthDistribution, Workload

LENGTHS: TypeAdapter[Any] = TypeAdapter(LengthDistribution)

_ends = st.tuples(st.integers(1, 5000), st.integers(1, 5000)).map(sorted)
_lengths = st.one_of(
    st.integers(1, 5000).map(lambda tokens: {"kind": "fixed", "tokens": tokens}),
    _ends.map(lambda ends: {"kind": "uniform", "low": ends[0], "high": ends[1]}),
    st.tuples(_ends, st.floats(0, 1), st.floats(0.01, 5)).map(
        lambda x: {
            "kind": "lognormal",
            "median": min(x[0][1], x[0][0] + x[1] * (x[0][1] - x[0][0])),
            "sigma": x[2],
            "low": x[0][0],
            "high": x[0][1],
        }
    ),
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 5000)), min_size=1, max_size=5).map(
        lambda parts: {"kind": "mixture", "parts": [{"weight": w, "tokens": t} for w, t in parts]}
    ),
)


@given(raw=_lengths, seed=st.integers(0, 2**32))
def test_no_draw_leaves_its_ends(raw: dict[str, Any], seed: int) -> None:
    lengths = LENGTHS.validate_python(raw)
    draws = [lengths.draw(np.random.default_rng(seed + n)) for n in range(20)]
    assert all(1 <= draw <= lengths.longest_tokens for draw in draws)
    assert all(draw >= raw.get("low", 1) for draw in draws)
    assert LENGTHS.validate_python(LENGTHS.dump_python(lengths)) == lengths


def test_uniform_reaches_both_ends() -> None:
    lengths = LENGTHS.validate_python({"kind": "uniform", "low": 3, "high": 5})
    rng = np.random.default_rng(1)
    assert {lengths.draw(rng) for _ in range(200)} == {3, 4, 5}


def test_mixture_follows_its_weights() -> None:
    parts = [{"weight": 3, "tokens": 10}, {"weight": 1, "tokens": 99}]
    lengths = LENGTHS.validate_python({"kind": "mixture", "parts": parts})
    rng = np.random.default_rng(1)
    assert np.mean([lengths.draw(rng) == 10 for _ in range(2000)]) == pytest.approx(0.75, abs=0.04)


def test_lognormal_has_its_median() -> None:
    lengths = LENGTHS.validate_python({"kind": "lognormal", "median": 200, "sigma": 0.8, "low": 1, "high": 10_000})
    rng = np.random.default_rng(1)
    assert np.median([lengths.draw(rng) for _ in range(4000)]) == pytest.approx(200, rel=0.06)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("arrivals", {"kind": "closed_loop", "in_flight": 0}, "greater than or equal to 1"),
        ("arrivals", {"kind": "open_loop", "in_flight": 4}, "closed_loop"),
        ("arrivals", {"in_flight": 4}, "Unable to extract tag"),
        ("prompt_tokens", {"kind": "uniform", "low": 9, "high": 3}, "low is 9 and must not exceed high, which is 3"),
        ("prompt_tokens", {"kind": "gauss", "tokens": 3}, "gauss"),
        ("output_tokens", {"kind": "fixed", "tokens": 0}, "greater than or equal to 1"),
        (
            "output_tokens",
            {"kind": "lognormal", "median": 50, "sigma": 1, "low": 1, "high": 20},
            "median is 50 and must lie between",
        ),
        ("output_tokens", {"kind": "mixture", "parts": []}, "at least 1 item"),
        ("window", {"min_s": 9, "max_s": 3, "min_requests": 1}, "min_s is 9 and must not exceed max_s, which is 3"),
        ("windoww", {}, "Extra inputs"),
    ],
)
def test_a_wrong_part_is_refused_in_words(
    make_workload: Callable[..., Workload], part: str, value: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        make_workload(**{part: value})


def test_longest_request_holds_prefix_prompt_and_answer(make_workload: Callable[..., Workload]) -> None:
    plain = make_workload()
    assert (plain.longest_prompt_tokens, plain.longest_request_tokens) == (8, 13)
    shared = make_workload(shared_prefix={"prefixes": 2, "tokens": 100})
    assert (shared.longest_prompt_tokens, shared.longest_request_tokens) == (108, 113)


def test_a_workload_survives_json(make_workload: Callable[..., Workload]) -> None:
    workload = make_workload(shared_prefix={"prefixes": 2, "tokens": 100})
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


@pytest.mark.parametrize(
    ("short", "keys"),
    [
        (128, {"kind": "fixed", "tokens": 128}),
        ("128", {"kind": "fixed", "tokens": 128}),
        ("50-300", {"kind": "uniform", "low": 50, "high": 300}),
        (
            "0.3:64, 0.5:128,.2:256",
            {
                "kind": "mixture",
                "parts": [
                    {"weight": 0.3, "tokens": 64},
                    {"weight": 0.5, "tokens": 128},
                    {"weight": 0.2, "tokens": 256},
                ],
            },
        ),
    ],
)
def test_a_short_form_stands_for_its_keys(short: object, keys: dict[str, Any]) -> None:
    assert LENGTHS.validate_python(short) == LENGTHS.validate_python(keys)


@pytest.mark.parametrize(
    ("short", "words"),
    [
        (0, "a length lies between 1 and"),
        (-3, "a length lies between 1 and"),
        (True, "tag"),
        ("", "is no length"),
        ("many", "is no length"),
        ("300-50", "the low end is above the high one"),
        ("0.3:64,0.5", "is no length"),
        ("0:64", "a weight must be above 0"),
        ("1:0", "a length lies between 1 and"),
        ("9" * 5000, "a length lies between 1 and"),
        ("1.5", "is no length"),
    ],
)
def test_a_wrong_short_form_is_refused_in_words(short: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LENGTHS.validate_python(short)


@pytest.mark.parametrize("kind", ["constant", "poisson"])
@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_must_be_above_zero(make_workload: Callable[..., Workload], kind: str, rate: float) -> None:
    with pytest.raises(ValidationError, match=rf"arrivals\.{kind}\.rate_per_s"):
        make_workload(arrivals={"kind": kind, "rate_per_s": rate})


@pytest.mark.parametrize(
    ("arrivals", "most", "words"),
    [
        ({"kind": "closed_loop", "in_flight": 4}, 4, "4 requests in flight"),
        ({"kind": "constant", "rate_per_s": 8}, None, "8 requests/s at equal gaps"),
        ({"kind": "poisson", "rate_per_s": 8, "max_in_flight": 32}, 32, "8 requests/s (Poisson), at most 32 in flight"),
        ({"kind": "gamma", "rate_per_s": 1.5, "burstiness": 0.5}, None, "1.5 requests/s (gamma, burstiness 0.5)"),
        (
            {"kind": "ramp", "from_rate_per_s": 1, "to_rate_per_s": 9, "over_s": 60},
            None,
            "1 to 9 requests/s over 60 s",
        ),
    ],
)
def test_arrivals_say_what_they_are(
    make_workload: Callable[..., Workload], arrivals: dict[str, Any], most: int | None, words: str
) -> None:
    process = make_workload(arrivals=arrivals).arrivals
    assert (process.most_in_flight, process.words) == (most, words)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"prompt_tokens": None}, "prompt_tokens: is missing, and there is no source"),
        ({"output_tokens": None}, "output_tokens: is missing, and there is no source"),
        ({"arrivals": {"kind": "trace"}}, "trace needs a source of kind trace"),
        ({"source": {"kind": "jsonl", "path": "x.jsonl"}}, "leave one of the two out"),
        ({"endpoint": "chat", "content": "token_ids"}, "chat sends messages of text"),
        (
            {"source": {"kind": "jsonl", "path": "x"}, "prompt_tokens": None, "sessions": {"turns": 2}},
            "a source of kind jsonl has single requests",
        ),
        ({"shared_prefix": {"prefixes": 1, "tokens": 200, "aligned_to": 16}}, "take 192 or 208"),
        ({"shared_prefix": {"prefixes": 1, "tokens": 10, "aligned_to": 16}}, "take 16"),
        ({"window": {"min_s": 1, "max_s": 2, "min_requests": 9, "max_requests": 8}}, "must not exceed max_requests"),
        ({"structured_output": {"json_schema": {}}}, "at least 1 item"),
        ({"structured_output": {"json_schema": {"type": 3}}}, "no type of a JSON schema"),
        ({"structured_output": {"file": "/nowhere/schema.json"}}, "cannot be read: No such file"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    make_workload: Callable[..., Workload], parts: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        make_workload(**parts)


@pytest.mark.parametrize(
    ("keep_turns", "longest"),
    [(None, 100 + 3 * (8 + 5) + 8 + 5), (1, 100 + 1 * (8 + 5) + 8 + 5), (0, 100 + 8 + 5)],
)
def test_the_longest_request_of_a_session_repeats_what_came_before(
    make_workload: Callable[..., Workload], keep_turns: int | None, longest: int
) -> None:
    workload = make_workload(
        shared_prefix={"prefixes": 2, "tokens": 100}, sessions={"turns": "2-4", "keep_turns": keep_turns}
    )
    assert workload.longest_request_tokens == longest


def test_what_is_not_set_is_not_in_the_record(make_workload: Callable[..., Workload]) -> None:
    """A study that began before a key existed goes on under it: its recorded workload must not change."""
    assert set(make_workload().model_dump(mode="json")) == {
        "name", "endpoint", "arrivals", "prompt_tokens", "output_tokens", "shared_prefix", "warmup", "window",
    }  # fmt: skip
    workload = make_workload(shared_prefix={"prefixes": 2, "tokens": 32})
    assert workload.model_dump(mode="json")["shared_prefix"] == {"prefixes": 2, "tokens": 32}
    assert set(workload.model_dump(mode="json")["window"]) == {"min_s", "max_s", "min_requests"}


def test_a_schema_is_read_from_beside_the_workload(make_workload: Callable[..., Workload], tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    (tmp_path / "answer.json").write_text(json.dumps(schema), encoding="utf-8")
    data = {**make_workload().model_dump(), "structured_output": {"file": "answer.json"}}
    workload = Workload.model_validate(data, context={"folder": tmp_path})
    assert workload.structured_output is not None
    assert workload.structured_output.json_schema == schema
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


@pytest.mark.parametrize(
    ("content", "words"), [(b"{", "line 1: this is not JSON"), (b"[1]", "is a list"), (b"\xff", "not UTF-8")]
)
def test_a_wrong_schema_file_is_refused(
    make_workload: Callable[..., Workload], tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "answer.json"
    path.write_bytes(content)
    with pytest.raises(ValidationError, match=words):
        make_workload(structured_output={"file": str(path)})
