"""A wanted number becomes a legal value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter
from optimizer.tuning.snapping import snapped

LENGTH = ChoiceParameter(kind="choice", choices=(16384, 1024, 4096))
MEMORY = FloatParameter(kind="float", low=0.9, high=2.1, step=0.4)
SHARE = FloatParameter(kind="float", low=0.5, high=0.95)
SEQS = IntParameter(kind="int", low=4, high=128, log=True)
STEPS = IntParameter(kind="int", low=8, high=64, step=8)


@pytest.mark.parametrize(
    ("parameter", "wanted", "side", "value"),
    [
        (LENGTH, 1025, "up", 4096),
        (LENGTH, 1024, "up", 1024),
        (LENGTH, 99_999, "up", 16384),
        (LENGTH, 4095, "down", 1024),
        (LENGTH, 1, "down", 1024),
        (LENGTH, 1800, "near", 1024),
        (LENGTH, 2400, "near", 4096),
        (MEMORY, 1.7, "down", 1.7),
        (MEMORY, 1.69, "down", 1.3),
        (MEMORY, 1.31, "up", 1.7),
        (MEMORY, 1.4, "near", 1.3),
        (SHARE, 0.8123, "near", 0.8123),
        (SHARE, 2.0, "down", 0.95),
        (SEQS, 47.5, "up", 48),
        (SEQS, 47.5, "down", 47),
        (SEQS, 1000, "up", 128),
        (STEPS, 20, "down", 16),
        (STEPS, 20.1, "near", 24),
        (BoolParameter(kind="bool"), 1, "near", None),
        (ChoiceParameter(kind="choice", choices=("a", "b")), 1, "near", None),
    ],
    ids=str,
)
def test_the_neighbour_of_a_number(parameter, wanted, side, value):
    found = snapped(parameter, wanted, side)
    assert found == value
    assert type(found) is type(value)


@given(
    wanted=st.floats(-1e6, 1e6),
    side=st.sampled_from(("up", "down", "near")),
    parameter=st.sampled_from((LENGTH, MEMORY, SHARE, SEQS, STEPS)),
)
def test_it_is_always_legal_and_on_its_side(wanted, side, parameter):
    value = snapped(parameter, wanted, side)
    assert value is not None
    assert parameter.contains(value)
    ends = (1024, 16384) if parameter is LENGTH else (parameter.low, parameter.high)
    if ends[0] <= wanted <= ends[1] and side != "near":
        assert (value >= wanted - 1e-6) if side == "up" else (value <= wanted + 1e-6)
