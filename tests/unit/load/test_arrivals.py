"""When requests are due: the rates, the spread and the seed of each kind of arrivals."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from optimizer.load.arrival_process import ArrivalProcess
from optimizer.load.arrivals import ramp_offsets_s, window_offsets_s

KINDS: list[dict[str, Any]] = [
    {"kind": "constant", "rate_per_s": 40},
    {"kind": "poisson", "rate_per_s": 40},
    {"kind": "gamma", "rate_per_s": 40, "burstiness": 0.25},
    {"kind": "ramp", "from_rate_per_s": 20, "to_rate_per_s": 40, "over_s": 30},
]


def arrivals(**parts: Any) -> ArrivalProcess:
    adapter: TypeAdapter[ArrivalProcess] = TypeAdapter(ArrivalProcess)
    return adapter.validate_python(parts)


def offsets(process: ArrivalProcess, n: int, seed: int = 7, recorded: Any = None) -> np.ndarray:
    return np.array([*islice(window_offsets_s(process, seed, recorded), n)])


@pytest.mark.parametrize("parts", KINDS, ids=lambda parts: parts["kind"])
def test_the_study_seed_alone_decides_and_the_ramp_has_draws_of_its_own(parts: dict[str, Any]) -> None:
    process = arrivals(**parts)
    once = offsets(process, 3000)
    assert (np.diff(once) >= 0).all()
    assert once[0] >= 0
    assert (offsets(process, 3000) == once).all()
    if parts["kind"] != "constant":
        assert (offsets(process, 3000, seed=8) != once).any()
        assert (np.array([*islice(ramp_offsets_s(process, 7, None), 3000)]) != once).any()


@pytest.mark.parametrize(("burstiness", "kind"), [(1.0, "poisson"), (0.25, "gamma"), (4.0, "gamma")])
def test_gaps_have_the_mean_and_the_spread_that_is_asked_for(burstiness: float, kind: str) -> None:
    more = {} if kind == "poisson" else {"burstiness": burstiness}
    gaps = np.diff(offsets(arrivals(kind=kind, rate_per_s=50, **more), 40_000))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.04)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.1)


def test_constant_gaps_are_equal_and_do_not_drift() -> None:
    assert offsets(arrivals(kind="constant", rate_per_s=3), 7)[-1] == 2.0
    assert [*islice(window_offsets_s(arrivals(kind="constant", rate_per_s=3), 0, None), 30_001)][-1] == 10_000.0


@given(first=st.floats(0.1, 100), last=st.floats(0.1, 100), over_s=st.floats(0.1, 100))
def test_a_ramp_sees_as_many_requests_by_its_end_as_its_mean_rate_gives(
    first: float, last: float, over_s: float
) -> None:
    """The offsets turned back into counts of events are those of a process of rate 1."""
    ramp = arrivals(kind="ramp", from_rate_per_s=first, to_rate_per_s=last, over_s=over_s)
    at_s = offsets(ramp, 50)
    inside = np.minimum(at_s, over_s)
    events = first * inside + (last - first) * inside**2 / (2 * over_s) + last * (at_s - inside)
    assert events == pytest.approx(offsets(arrivals(kind="poisson", rate_per_s=1), 50), rel=1e-6)


def test_before_the_window_a_ramp_has_the_rate_it_starts_from() -> None:
    ramp = arrivals(kind="ramp", from_rate_per_s=10, to_rate_per_s=1000, over_s=1)
    assert [*islice(ramp_offsets_s(ramp, 1, None), 5000)][-1] == pytest.approx(500, rel=0.05)


def test_a_trace_is_played_at_its_speed_and_again_a_mean_gap_after_its_end() -> None:
    trace = arrivals(kind="trace", speed=2.0)
    assert offsets(trace, 6, recorded=np.array([0.0, 1.0, 4.0])).tolist() == [0.0, 0.5, 2.0, 3.0, 3.5, 5.0]


def test_a_trace_that_takes_no_time_is_played_once() -> None:
    assert offsets(arrivals(kind="trace"), 10, recorded=np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_what_has_no_times_is_a_fault_of_ours() -> None:
    for process in (arrivals(kind="closed_loop", in_flight=2), arrivals(kind="trace")):
        with pytest.raises(ValueError, match=r"arrival times|recorded times"):
            next(window_offsets_s(process, 1, None))
