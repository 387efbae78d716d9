"""Where the first of several limits is used up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.measurement import FloatArray
from optimizer.objectives.used_up import first_used_up


@given(share=st.floats(0.02, 1.05), slope=st.floats(0.5, 40.0), bend=st.floats(0.0, 200.0), served=st.floats(0.01, 1e4))
def test_the_rate_is_found_whatever_the_curve(share: float, slope: float, bend: float, served: float) -> None:
    looked: list[float] = []

    def over(rate: float) -> FloatArray:
        looked.append(rate)
        x = math.log(rate / (share * served))
        return np.array([slope * x + bend * x * abs(x)])

    rate, number, found = first_used_up(over, served)
    assert rate == pytest.approx(share * served, rel=2e-3)
    assert number == 0
    assert found > 0.0
    # A grid of 140,000 curves takes 12 and 45 at most.
    assert len(looked) <= (14 if 0.6 < share < 1.0 and slope >= 3.0 else 60)


def test_the_limit_that_is_used_up_first_counts() -> None:
    rate, number, slope = first_used_up(lambda at: np.array([math.log(at / 80.0), 5.0 * math.log(at / 60.0)]), 100.0)
    assert rate == pytest.approx(60.0, rel=1e-3)
    assert number == 1
    assert slope == pytest.approx(5.0, rel=0.2)


def test_limits_that_are_never_or_always_used_up_end_at_the_ends() -> None:
    assert first_used_up(lambda _: np.array([-1.0]), 100.0)[0] == pytest.approx(110.0, rel=2e-3)
    assert first_used_up(lambda _: np.array([1.0]), 100.0)[0] == pytest.approx(100.0 / 64.0, rel=2e-3)
