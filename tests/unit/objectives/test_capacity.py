"""The search for the highest rate, on curves of any shape whose knee is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from optimizer.core.scoring import Verdict
from optimizer.objectives.capacity import (
    LOWEST,
    MOST_PROBES,
    MOST_VERDICTS,
    PROBE_LEVEL,
    CapacityLevel,
    CapacityResult,
    CapacitySearch,
    LevelPlan,
    result_of,
)

LEVEL = 0.05


class Curve:
    """Headroom that falls with the rate and is 1 at the knee, seen with noise; a verdict is always right."""

    def __init__(self, headroom: Callable[[float], float], noise: float = 0.0, seed: int = 0) -> None:
        self.headroom, self.noise = headroom, noise
        self.rng = np.random.default_rng(seed)
        self.plans: list[LevelPlan] = []

    def at(self, plan: LevelPlan) -> CapacityLevel:
        """Decided where the true headroom is 5 % or more off 1."""
        self.plans.append(plan)
        true = self.headroom(plan.rate_per_s)
        requests = 300 if plan.probe else 3000
        seen = true * math.exp(self.noise * float(self.rng.normal()) * math.sqrt(300 / requests))
        verdict = Verdict.UNDECIDED
        if true < 1.0 / 1.05 and (not plan.probe or true < 0.7):
            verdict = Verdict.INFEASIBLE
        elif true > 1.05 and not plan.probe:
            verdict = Verdict.FEASIBLE
        return CapacityLevel(plan.rate_per_s, verdict, seen, requests, plan.probe)


def found(curve: Curve, served: float) -> CapacityResult:
    search = CapacitySearch(served, level=LEVEL)
    while (plan := search.next()) is not None:
        search.tell(curve.at(plan))
    return search.result()


def queue(knee: float, served: float, power: float = 1.0) -> Callable[[float], float]:
    return lambda rate: max(0.0, (served - rate) / (served - knee)) ** power


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_highest_feasible_rate_comes_near_the_knee(share: float, power: float) -> None:
    curve = Curve(queue(40.0, 40.0 / share, power))
    result = found(curve, 40.0 / share)
    assert result.rate_per_s is not None
    assert result.rate_per_s < 40.0
    assert result.rate_per_s > 0.93 * 40.0 or curve.headroom(result.rate_per_s) < 1.1, "nearer none is decided"
    assert result.knee is not None
    assert result.knee.rate_per_s == pytest.approx(40.0, rel=0.05)


@given(
    knee=st.floats(0.1, 1e4),
    share=st.floats(0.05, 0.99),
    power=st.floats(0.2, 4.0),
    noise=st.floats(0.0, 0.5),
    seed=st.integers(0, 1000),
)
def test_it_ends_and_never_calls_an_infeasible_rate_feasible(
    knee: float, share: float, power: float, noise: float, seed: int
) -> None:
    served = knee / share
    curve = Curve(queue(knee, served, power), noise, seed)
    result = found(curve, served)
    probes = sum(plan.probe for plan in curve.plans)
    assert probes <= MOST_PROBES
    assert len(curve.plans) - probes <= MOST_VERDICTS
    assert all(0.0 < plan.rate_per_s < math.inf for plan in curve.plans)
    if result.rate_per_s is not None:
        assert result.rate_per_s < knee, "each verdict was right"
        assert result.infeasible_per_s is None or result.infeasible_per_s > result.rate_per_s


@given(knee=st.floats(0.1, 1e4), share=st.floats(0.1, 0.99), power=st.floats(0.2, 4.0), seed=st.integers(0, 99))
def test_it_never_ends_with_nothing_while_a_rate_above_the_floor_is_feasible(
    knee: float, share: float, power: float, seed: int
) -> None:
    headroom = queue(knee, knee / share, power)
    assume(headroom(4.0 * LOWEST * knee / share) > 1.1)
    assert found(Curve(headroom, 0.3, seed), knee / share).rate_per_s is not None


@given(verdicts=st.lists(st.sampled_from(list(Verdict)), min_size=MOST_VERDICTS, max_size=MOST_VERDICTS))
def test_the_error_of_all_verdicts_together_is_the_level(verdicts: list[Verdict]) -> None:
    """Feasible ones in a row go up, so that the first wrong one alone can err: a row costs what one of it does."""
    search, coming, rows, last = CapacitySearch(100.0, level=LEVEL), iter(verdicts), [], None
    while (plan := search.next()) is not None:
        verdict = Verdict.UNDECIDED if plan.probe else next(coming)
        if not plan.probe:
            in_a_row = last is not None and last[1] is Verdict.FEASIBLE
            if in_a_row:
                assert last is not None
                assert plan.rate_per_s > last[0].rate_per_s
                assert plan.level == rows[-1]
            else:
                rows.append(plan.level)
            last = (plan, verdict)
        search.tell(CapacityLevel(plan.rate_per_s, verdict, 1.0, 300, plan.probe))
    assert sum(rows) <= LEVEL


def test_a_probe_yields_no_feasible_rate() -> None:
    search = CapacitySearch(100.0)
    plan = search.next()
    assert plan == LevelPlan(85.0, PROBE_LEVEL, probe=True)
    search.tell(CapacityLevel(85.0, Verdict.FEASIBLE, 3.0, 300, probe=True))
    assert search.result().rate_per_s is None


def test_where_nothing_is_feasible_it_goes_down_to_the_floor() -> None:
    search = CapacitySearch(64.0)
    rates = []
    while (plan := search.next()) is not None:
        rates.append(plan.rate_per_s)
        search.tell(CapacityLevel(plan.rate_per_s, Verdict.INFEASIBLE, 0.1, 60, plan.probe))
    assert search.result().rate_per_s is None
    assert rates == sorted(rates, reverse=True)
    assert 64.0 * LOWEST <= rates[-1] < 2.5 * 64.0 * LOWEST


@pytest.mark.parametrize(
    ("levels", "dominated"),
    [
        ([(50.0, Verdict.INFEASIBLE)], True),
        ([(49.0, Verdict.INFEASIBLE)], True),
        ([(51.0, Verdict.INFEASIBLE)], False),
        ([(50.0, Verdict.UNDECIDED)], False),
        ([(40.0, Verdict.FEASIBLE), (50.0, Verdict.INFEASIBLE)], True),
        ([(52.0, Verdict.FEASIBLE), (49.0, Verdict.INFEASIBLE)], False),
    ],
)
def test_a_setting_that_is_infeasible_at_the_best_rate_so_far_is_given_up(
    levels: list[tuple[float, Verdict]], dominated: bool
) -> None:
    tried = [CapacityLevel(rate, verdict, 1.0, 3000, probe=False) for rate, verdict in levels]
    assert result_of(tried, incumbent_per_s=50.0).dominated is dominated


def test_from_a_feasible_rate_it_goes_on_upwards() -> None:
    earlier = CapacityLevel(50.0, Verdict.FEASIBLE, 1.8, 2000, probe=False)
    search = CapacitySearch(100.0, earlier=[earlier])
    plan = search.next()
    assert plan is not None
    assert plan.goes_up
    assert plan.rate_per_s > 50.0


@pytest.mark.parametrize("served", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_rate_is_a_fault(served: float) -> None:
    with pytest.raises(ValueError, match="no rate"):
        CapacitySearch(served)
