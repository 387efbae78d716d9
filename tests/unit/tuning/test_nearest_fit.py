"""The nearest acceptable setting: fewest changes first, then the smallest."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, SearchSpace
from optimizer.tuning.nearest_fit import distance, grid, nearest, total_distance

MEMORY = FloatParameter(kind="float", low=0.9, high=2.1, step=0.4)
SEQS = IntParameter(kind="int", low=4, high=128, log=True)
LENGTH = ChoiceParameter(kind="choice", choices=(1024, 2048, 4096, 16384))
SPECULATION = ChoiceParameter(kind="choice", sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}})
SPACE = SearchSpace(
    {
        "gpu-memory-utilization": MEMORY,
        "max-num-seqs": SEQS,
        "max-model-len": LENGTH,
        "enable-prefix-caching": BoolParameter(kind="bool"),
        "speculation": SPECULATION,
        "num-speculative-tokens": IntParameter(
            kind="int",
            low=1,
            high=4,
            flag="speculative-config.num_speculative_tokens",
            when={"speculation": "ngram"},
        ),
    }
)
START: dict[str, ParamValue] = {
    "gpu-memory-utilization": 0.9,
    "max-num-seqs": 64,
    "max-model-len": 16384,
    "enable-prefix-caching": True,
    "speculation": "none",
    "num-speculative-tokens": 3,
}


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (MEMORY, (0.9, 1.3, 1.7, 2.1)),
        (LENGTH, (1024, 2048, 4096, 16384)),
        (BoolParameter(kind="bool"), (False, True)),
        (IntParameter(kind="int", low=1, high=3), (1, 2, 3)),
        (IntParameter(kind="int", low=1, high=256, log=True), (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        (FloatParameter(kind="float", low=0.0, high=1.0), (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)),
    ],
    ids=str,
)
def test_a_grid_reaches_both_ends_and_keeps_the_steps(parameter, values):
    assert grid(parameter) == values


def test_distances_are_shares_of_the_parameters_own_scale():
    assert distance(MEMORY, 0.9, 2.1) == pytest.approx(1.0)
    assert distance(SEQS, 4, 128) == pytest.approx(1.0)
    assert distance(SEQS, 8, 16) == pytest.approx(0.2)
    assert distance(LENGTH, 1024, 4096) == pytest.approx(2 / 3)
    assert distance(SPECULATION, "none", "ngram") == 1.0
    assert distance(BoolParameter(kind="bool"), True, True) == 0.0


def test_one_small_change_is_better_than_one_large_and_than_two():
    found = nearest(SPACE, START, lambda params: params["gpu-memory-utilization"] >= 1.3 or params["max-num-seqs"] < 5)
    assert found == {**without_guesses(START), "gpu-memory-utilization": 1.3}


def test_two_changes_when_one_is_not_enough():
    found = nearest(
        SPACE, START, lambda params: params["max-model-len"] <= 2048 and not params["enable-prefix-caching"]
    )
    assert found == {**without_guesses(START), "max-model-len": 2048, "enable-prefix-caching": False}


def test_a_change_that_brings_a_parameter_into_being_takes_its_drawn_value():
    found = nearest(SPACE, START, lambda params: params["speculation"] == "ngram")
    assert found == {**START, "speculation": "ngram"}


def test_none_where_no_two_changes_do():
    assert nearest(SPACE, START, lambda params: False) is None


@settings(max_examples=40)
@given(
    memory=st.sampled_from(grid(MEMORY)),
    seqs=st.integers(4, 128),
    length=st.sampled_from(grid(LENGTH)),
    least=st.sampled_from(grid(MEMORY)),
    most=st.sampled_from(grid(LENGTH)),
)
def test_nothing_acceptable_lies_nearer(memory, seqs, length, least, most):
    start = {**START, "gpu-memory-utilization": memory, "max-num-seqs": seqs, "max-model-len": length}

    def accepts(params):
        return params["gpu-memory-utilization"] >= least and params["max-model-len"] <= most

    found = nearest(SPACE, start, lambda params: accepts(params) and params != without_guesses(start))
    assert found is not None
    assert accepts(found)
    changes = sum(value != start[name] for name, value in found.items())
    for one, other in itertools.product(grid(MEMORY), grid(LENGTH)):
        rival = {**without_guesses(start), "gpu-memory-utilization": one, "max-model-len": other}
        if rival == without_guesses(start) or not accepts(rival):
            continue
        rival_changes = sum(value != start[name] for name, value in rival.items())
        assert (changes, total_distance(SPACE, start, found)) <= (
            rival_changes,
            total_distance(SPACE, start, rival) + 1e-9,
        )


def without_guesses(params):
    return {name: value for name, value in params.items() if name != "num-speculative-tokens"}
