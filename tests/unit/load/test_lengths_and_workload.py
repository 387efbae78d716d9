"""Lengths and workloads: hard ends hold, and a wrong file says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
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
        ("arrivals", {"in_flight": 4}, "Field required"),
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
