from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.storage.json_text import from_text, to_text

marks = st.sampled_from(["$float", "$dict", "$other"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(marks | st.text(max_size=5), inner, max_size=3),
)


@given(values)
def test_every_value_comes_back_with_its_types_and_its_order(value):
    assert repr(from_text(to_text(value))) == repr(value)


@given(values)
def test_the_text_is_standard_json_in_ascii(value):
    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    text = to_text(value)
    json.loads(text, parse_constant=refuse)
    assert text.isascii()
    assert "\0" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("inf"), '{"$float":"inf"}'),
        ([1, 1.0, True], "[1,1.0,true]"),
        ((1, 2), "[1,2]"),
        (np.float64("-inf"), '{"$float":"-inf"}'),
        ({"$float": "inf"}, '{"$dict":{"$float":"inf"}}'),
    ],
)
def test_the_form_on_disk_stays_as_it_is(value, text):
    assert to_text(value) == text


def test_numpy_integers_are_refused_rather_than_guessed():
    with pytest.raises(TypeError):
        to_text({"max-num-seqs": np.int64(8)})


@pytest.mark.parametrize("text", ["", "{", '{"$dict":1}', '{"$float":"many"}'])
def test_other_text_is_an_error(text):
    with pytest.raises(ValueError, match=r".+"):
        from_text(text)
