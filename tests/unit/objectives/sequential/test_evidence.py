"""Evidence that a share of requests is small or large: its promise, summed over every possible sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.objectives.sequential.evidence import Side, log_evidence

_LENGTH = 9
_SEQUENCES = [np.array(bits, dtype=np.bool_) for bits in itertools.product([False, True], repeat=_LENGTH)]


def probability(over: np.ndarray, enter: float, stay: float) -> float:
    """Of a sequence from a Markov chain that starts below the level."""
    result, active = 1.0, False
    for is_over in over:
        chance = stay if active else enter
        result *= chance if is_over else 1.0 - chance
        active = bool(is_over)
    return result


def evidence(over: np.ndarray, allowed: float, side: Side, longest_run: float = 16.0) -> float:
    looks = np.array([over.size])
    return float(log_evidence(over, allowed, side, looks, longest_run=np.array([longest_run]))[0])


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("stay", [0.2, 0.5, 0.8, 0.9])
def test_where_the_share_is_what_is_allowed_evidence_is_one_at_most_on_average(side: Side, stay: float) -> None:
    allowed = 0.2
    enter = allowed * (1.0 - stay) / (1.0 - allowed)
    mean = sum(probability(x, enter, stay) * np.exp(evidence(x, allowed, side)) for x in _SEQUENCES)
    assert sum(probability(x, enter, stay) for x in _SEQUENCES) == pytest.approx(1.0)
    # The largest likelihood is looked for on a grid of run lengths, and so missed by a hair.
    assert mean <= 1.01


def test_evidence_grows_with_what_speaks_for_it() -> None:
    spread = np.zeros(4000, dtype=np.bool_)
    spread[::500] = True
    dense = np.zeros(4000, dtype=np.bool_)
    dense[::20] = True
    assert evidence(spread, 0.01, Side.BELOW) > 3.0 > evidence(spread, 0.01, Side.ABOVE)
    assert evidence(dense, 0.01, Side.ABOVE) > 3.0 > evidence(dense, 0.01, Side.BELOW)


def test_the_same_number_in_runs_tells_less_than_one_by_one() -> None:
    singles, runs = np.zeros(3000, dtype=np.bool_), np.zeros(3000, dtype=np.bool_)
    singles[::50] = True
    for start in range(0, 3000, 750):
        runs[start : start + 15] = True
    assert singles.sum() == runs.sum()
    assert evidence(singles, 0.01, Side.ABOVE) > evidence(runs, 0.01, Side.ABOVE)


def test_without_any_over_the_level_the_longest_run_decides_how_many_requests_it_takes() -> None:
    none_over = np.zeros(2000, dtype=np.bool_)
    assert evidence(none_over, 0.01, Side.BELOW, 1.0) > 3.0 > evidence(none_over, 0.01, Side.BELOW, 16.0)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(50, 3000),
    share=st.sampled_from([0.0, 0.002, 0.01, 0.1]),
    allowed=st.sampled_from([0.001, 0.01, 0.05]),
)
def test_one_more_over_the_level_in_a_run_hardly_ever_speaks_for_a_small_share(
    seed: int, n: int, share: float, allowed: float
) -> None:
    start = np.append(np.random.default_rng(seed).random(n) < share, True)
    with_one_more, with_one_less = np.append(start, True), np.append(start, False)
    more, less = (evidence(over, allowed, Side.BELOW) for over in (with_one_more, with_one_less))
    # It also makes runs more likely, and with them a share that none of the others speaks against.
    assert more <= max(less, 0.0) + 0.1, "a tenth of a nat decides nothing"


@given(over=st.lists(st.booleans(), min_size=1, max_size=200), allowed=st.sampled_from([0.001, 0.01, 0.1, 0.5, 0.9]))
def test_evidence_is_finite_and_never_strong_for_both(over: list[bool], allowed: float) -> None:
    flags = np.array(over)
    both = [evidence(flags, allowed, side) for side in Side]
    assert np.isfinite(both).all()
    assert min(both) < 2.0
