from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from optimizer.core.errors import InputError
from optimizer.search_spaces import GIB, ChoiceParameter, FieldProblem, FloatParameter, IntParameter, Parameter

READ = TypeAdapter(Parameter)
TENTHS = FloatParameter(kind="float", low=0.1, high=1.3, step=0.4)
SMOOTH = FloatParameter(kind="float", low=0.1, high=1.3)
EIGHTS = IntParameter(kind="int", low=8, high=64, step=8)


@pytest.mark.parametrize(
    ("data", "key", "words"),
    [
        ({"kind": "int", "low": 8, "high": 8}, "high", "8 must lie above `low`, which is 8"),
        ({"kind": "int", "low": 9, "high": 8}, "high", "impossible"),
        ({"kind": "int", "low": 0, "high": 8, "log": True}, "low", "0 must be above 0"),
        ({"kind": "int", "low": 2, "high": 8, "log": True, "step": 2}, "step", "2 excludes `log: true`"),
        ({"kind": "int", "low": 1, "high": 8, "step": 2}, "high", "7 would be"),
        ({"kind": "int", "low": 1, "high": 8, "step": 9}, "step", "9 is wider"),
        ({"kind": "int", "low": 1, "high": 8, "default": 9}, "default", "9 is not in 1..8"),
        ({"kind": "int", "low": 2, "high": 8, "step": 2, "default": 3}, "default", "3 is not in 2..8 (step 2)"),
        ({"kind": "float", "low": 0.9, "high": 0.8}, "high", "0.8 must lie above"),
        ({"kind": "float", "low": 0.1, "high": 1.0, "step": 0.4}, "high", "0.9 would be"),
        ({"kind": "float", "low": 0.1, "high": 1.0, "default": 1.1}, "default", "1.1 is not in"),
        ({"kind": "float", "low": 0.0, "high": 1.0, "unit": "GiB"}, "low", "0 GiB"),
        ({"kind": "float", "low": 0.1, "high": 1.0, "step": 0.1, "log": True}, "step", "0.1 excludes"),
        ({"kind": "choice", "choices": [1, 2], "default": 3}, "default", "3 is not one of 1, 2"),
        ({"kind": "choice"}, "choices", "needs either"),
        ({"kind": "choice", "choices": [1], "sets": {"a": {"x": 1}}}, "choices", "needs either"),
        ({"kind": "choice", "sets": {"a": {"x": 1}}, "flag": "y"}, "flag", "'y' has no meaning"),
        ({"kind": "choice", "sets": {"a": {"x": None}}}, "a.x", "has no value"),
    ],
)
def test_an_impossible_parameter_names_the_key_and_the_value(data, key, words):
    with pytest.raises(ValidationError) as caught:
        READ.validate_python(data)
    (detail,) = caught.value.errors()
    problem = detail["ctx"]["error"]
    assert isinstance(problem, FieldProblem)
    assert problem.key == key
    assert words in str(problem)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "choice", "choices": [1, 1.0]}, "twice"),
        ({"kind": "choice", "choices": ["a", True]}, "quotes"),
        ({"kind": "choice", "choices": "abc"}, "list"),
        ({"kind": "int", "low": "1", "high": 8}, "valid integer"),
        ({"kind": "int", "low": 1, "high": 8, "step": 0}, "greater than or equal to 1"),
        ({"kind": "int", "low": 1, "high": float("inf")}, "valid integer"),
        ({"kind": "int", "low": 1, "high": 10**21}, "less than or equal to 9007199254740992"),
        ({"kind": "float", "low": 1, "high": float("inf")}, "finite"),
        ({"kind": "float", "low": 1, "high": 2, "unit": "GB"}, "GiB"),
        ({"kind": "bool", "when": {"x": [1]}}, "must be text, a number, or true or false"),
        ({"kind": "bool", "default": 1}, "boolean"),
    ],
)
def test_a_wrong_field_is_refused(data, words):
    with pytest.raises(ValidationError, match=words):
        READ.validate_python(data)


@pytest.mark.parametrize(
    ("data", "inside", "outside"),
    [
        ({"kind": "int", "low": 2, "high": 8, "step": 2}, [2, 4, 8], [3, 1, 10, 4.0, True, "4"]),
        ({"kind": "float", "low": 0.8, "high": 0.95, "step": 0.05}, [0.8, 0.85, 0.1 + 0.75], [0.81, 1.0, True, "0.8"]),
        ({"kind": "float", "low": 0, "high": 2}, [0, 1, 2.0], [float("nan"), 2.1, False]),
        ({"kind": "bool"}, [True, False], [0, 1, "true"]),
        ({"kind": "choice", "choices": [1, "a", 0.5]}, [1, 1.0, "a", 0.5], [True, "1", 2]),
        ({"kind": "choice", "sets": {"none": {}, "on": {"x": True}}}, ["none", "on"], [True, "off"]),
    ],
)
def test_a_parameter_contains_its_range_and_nothing_else(data, inside, outside):
    parameter = READ.validate_python(data)
    assert [value for value in inside if not parameter.contains(value)] == []
    assert [value for value in outside if parameter.contains(value)] == []


@pytest.mark.parametrize(
    ("parameter", "wanted", "side", "value"),
    [
        (EIGHTS, 20, "near", 24),
        (EIGHTS, 20, "down", 16),
        (EIGHTS, 16.1, "up", 24),
        (EIGHTS, 16, "up", 16),
        (EIGHTS, 1e9, "down", 64),
        (EIGHTS, -1, "up", 8),
        (TENTHS, 0.69, "near", 0.5),
        (TENTHS, 0.51, "up", 0.9),
        (TENTHS, 0.1 + 0.4 + 0.4, "up", 0.9),
        (TENTHS, 9, "near", 1.3),
        (SMOOTH, 0.777, "down", 0.777),
        (SMOOTH, 0, "near", 0.1),
    ],
    ids=str,
)
def test_a_number_lands_on_the_grid(parameter, wanted, side, value):
    found = parameter.on_grid(wanted, side)
    assert found == pytest.approx(value, abs=1e-12)
    assert type(found) is type(value)


@given(st.integers(-1000, 1000), st.integers(1, 50), st.integers(1, 50))
def test_all_values_of_a_whole_range_are_told_and_counted(low, step, steps):
    parameter = IntParameter(kind="int", low=low, high=low + step * steps, step=step)
    assert parameter.steps == steps
    assert len(parameter.values) == steps + 1
    assert (parameter.values[0], parameter.values[-1]) == (parameter.low, parameter.high)
    assert all(parameter.on_grid(value) == value for value in parameter.values)


def test_steps_are_counted_whatever_their_binary_tail():
    assert TENTHS.steps == 3
    assert FloatParameter(kind="float", low=0.8, high=0.95, step=0.05).steps == 3
    assert SMOOTH.steps is None


def test_a_parameter_sets_the_flag_of_its_name_in_canonical_form():
    parameter = IntParameter(kind="int", low=1, high=8)
    assert parameter.to_flags("max_num_seqs", 4, device_memory_bytes=None) == {"max-num-seqs": 4}


def test_gib_become_a_fraction_of_the_device_to_four_decimals():
    parameter = FloatParameter(kind="float", low=0.5, high=3, unit="GiB", flag="gpu-memory-utilization")
    flags = parameter.to_flags("engine-memory", 1.5, device_memory_bytes=int(23.5 * GIB))
    assert flags == {"gpu-memory-utilization": 0.0638}


def test_gib_on_a_device_of_unknown_memory_is_an_error():
    parameter = FloatParameter(kind="float", low=0.5, high=3, unit="GiB", flag="gpu-memory-utilization")
    with pytest.raises(InputError, match=r"engine-memory: 1\.5 GiB cannot become gpu-memory-utilization"):
        parameter.to_flags("engine-memory", 1.5, device_memory_bytes=None)


def test_only_rising_numbers_are_ordered_choices():
    assert ChoiceParameter(kind="choice", choices=(16, 32, 64)).is_ordered
    assert not ChoiceParameter(kind="choice", choices=(32, 16)).is_ordered
    assert not ChoiceParameter(kind="choice", choices=(16, "auto")).is_ordered
    assert not ChoiceParameter(kind="choice", sets={"none": {}}).is_ordered
