from __future__ import annotations

import pytest

from optimizer.app.spaces import list_spaces, read_space
from optimizer.core.errors import InputError


def test_the_built_in_spaces_are_listed():
    assert {"tiny-cpu", "qwen13b"} <= {space.name for space in list_spaces()}


def test_a_space_is_told_in_words():
    space = read_space("tiny-cpu")
    domains = {parameter.name: parameter.domain for parameter in space.parameters}
    assert domains["max-num-seqs"].endswith("(log)")
    conditional = [parameter for parameter in space.parameters if parameter.condition]
    assert conditional[0].condition == "speculation=ngram"
    assert space.data["name"] == "tiny-cpu"


def test_an_unknown_space_is_the_user_s_slip():
    with pytest.raises(InputError, match="nosuch"):
        read_space("nosuch")
