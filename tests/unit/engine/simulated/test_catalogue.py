from __future__ import annotations

import pytest

from optimizer.engine.simulated.catalogue import simulated_catalogue
from optimizer.engine.simulated.command_line import parse_command_line


def test_it_holds_what_the_command_line_takes():
    known = simulated_catalogue("1")
    for flag in known.flags:
        words = {"none": [], "one": ["1"], "many": ["1", "2"]}[flag.words]
        if flag.choices is None:
            parse_command_line([flag.on[0], *words])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("max-num-seqs", "whole"),
        ("gpu-memory-utilization", "number"),
        ("max-num-batched-tokens", "size"),
        ("max-model-len", "size_or_auto"),
        ("enable-prefix-caching", "switch"),
        ("quantization", "any"),
    ],
)
def test_kinds(name, kind):
    flag = simulated_catalogue("1").flag(name)
    assert flag is not None
    assert flag.kind == kind


def test_switches_are_turned_off_and_other_spellings_known():
    known = simulated_catalogue("1")
    prefix = known.spelled("--disable-prefix-caching")
    assert prefix is not None
    assert prefix.name == "enable-prefix-caching"
    assert known.spelled("-tp") == known.flag("tensor-parallel-size")
    assert known.flag("bogus") is None
