"""Counts of runs, against counting one request after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optimizer.objectives.sequential.runs import OverSequence

_flags = st.lists(st.booleans(), min_size=1, max_size=60)
_windows = st.sampled_from([1, 2, 4, 16])


def counted(over: list[bool], window: int) -> list[int]:
    counts = [0, 0, 0, 0]
    for t, is_over in enumerate(over):
        active = any(over[max(0, t - window) : t])
        counts[(0 if active else 2) + (0 if is_over else 1)] += 1
    return counts


@given(over=_flags, window=_windows)
def test_transitions_are_those_counted_by_hand(over: list[bool], window: int) -> None:
    first = np.arange(len(over) + 1)
    counts = OverSequence(np.array(over)).transitions(window, first)
    assert counts.tolist() == [counted(over[:n], window) for n in first]


@given(over=_flags, window=_windows)
def test_the_largest_run_is_the_one_counted_by_hand(over: list[bool], window: int) -> None:
    largest, size = 0, 0
    for t in range(len(over) + 1):
        active = any(over[max(0, t - window) : t])
        if not active:  # whatever ran has ended
            largest, size = max(largest, size), 0
        if t < len(over) and over[t]:
            size += 1
    assert OverSequence(np.array(over)).largest_run(window, np.array([len(over)])).tolist() == [largest]


@given(over=_flags, window=_windows, length=st.integers(1, 20))
def test_leaving_out_the_worst_stretch_takes_what_it_holds(over: list[bool], window: int, length: int) -> None:
    counts = OverSequence(np.array(over)).transitions_without(length, window, np.array([len(over)]))[0]
    most = max(sum(over[start : start + length]) for start in range(len(over)))
    assert counts.min() >= 0
    assert counts[0] + counts[2] == sum(over) - most


def test_a_run_that_outlasts_the_stretch_is_entered_again() -> None:
    counts = OverSequence(np.ones(100, dtype=np.bool_)).transitions_without(50, 1, np.array([100]))
    assert counts.tolist() == [[49.0, 0.0, 1.0, 0.0]]
