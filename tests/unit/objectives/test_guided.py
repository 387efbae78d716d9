"""The search that a model guides: where it asks, when it ends, and what its verdicts may err together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.scoring import Verdict
from optimizer.objectives.capacity import LOWEST, CapacityLevel, LevelPlan
from optimizer.objectives.guided import MOST_PROBES, MOST_VERDICTS, GuidedSearch
from optimizer.objectives.headroom import Crossing

LEVEL, SERVED = 0.05, 100.0


def level(plan: LevelPlan, verdict: Verdict = Verdict.UNDECIDED) -> CapacityLevel:
    return CapacityLevel(plan.rate_per_s, verdict, 1.0, 300, plan.probe)


def asked(search: GuidedSearch, knee: Crossing, verdicts: list[Verdict]) -> list[LevelPlan]:
    """All plans where the knee stays where it is."""
    coming, plans = iter(verdicts), []
    while (plan := search.next(knee)) is not None:
        plans.append(plan)
        search.tell(level(plan, Verdict.UNDECIDED if plan.probe else next(coming)))
    return plans


def test_short_looks_come_near_and_one_verdict_is_asked_for_just_below_the_knee() -> None:
    plans = asked(GuidedSearch(SERVED, level=LEVEL), Crossing(70.0, 0.01), [Verdict.FEASIBLE])
    assert [plan.probe for plan in plans] == [True, True, False]
    assert [plan.rate_per_s for plan in plans[1:]] == pytest.approx([69.0, 69.0], rel=0.01)
    assert plans[-1].rate_per_s < 70.0
    assert plans[-1].level == LEVEL / 2.0


def test_a_knee_that_is_not_known_well_takes_one_more_look() -> None:
    plans = asked(GuidedSearch(SERVED, level=LEVEL), Crossing(70.0, 0.05), [Verdict.FEASIBLE])
    assert [plan.probe for plan in plans] == [True, True, True, False]


def test_a_feasible_rate_far_below_a_knee_that_has_moved_is_not_the_last() -> None:
    search = GuidedSearch(SERVED, level=LEVEL)
    for _ in range(3):
        plan = search.next(Crossing(70.0, 0.01))
        assert plan is not None
        search.tell(level(plan, Verdict.FEASIBLE))
    assert search.next(Crossing(71.0, 0.01)) is None
    plan = search.next(Crossing(80.0, 0.01))
    assert plan is not None
    assert plan.goes_up
    assert 70.0 < plan.rate_per_s < 80.0


@given(
    verdicts=st.lists(st.sampled_from(list(Verdict)), min_size=MOST_VERDICTS, max_size=MOST_VERDICTS),
    knees=st.lists(st.floats(0.5, 120.0), min_size=30, max_size=30),
    error=st.floats(0.005, 0.2),
)
def test_it_ends_and_all_verdicts_together_err_with_at_most_the_level(
    verdicts: list[Verdict], knees: list[float], error: float
) -> None:
    """Feasible ones in a row go up, so that the first wrong one alone can err: a row costs what one of it does."""
    search, coming, knee = GuidedSearch(SERVED, level=LEVEL), iter(verdicts), iter(knees)
    probes, rows, last = 0, [], None
    while (plan := search.next(Crossing(next(knee), error))) is not None:
        assert plan.rate_per_s >= LOWEST * SERVED
        if plan.probe:
            probes += 1
            search.tell(level(plan))
            continue
        verdict = next(coming)
        if last is not None and last[1] is Verdict.FEASIBLE:
            assert plan.rate_per_s > last[0].rate_per_s
            assert plan.level == rows[-1]
        else:
            assert last is None or plan.rate_per_s < last[0].rate_per_s
            rows.append(plan.level)
        last = (plan, verdict)
        search.tell(level(plan, verdict))
    assert probes <= MOST_PROBES
    assert sum(rows) <= LEVEL


def test_a_rate_without_a_verdict_that_was_tried_before_the_model_does_not_hold_the_search_down() -> None:
    before = CapacityLevel(75.0, Verdict.UNDECIDED, 1.1, 9000, probe=False)
    search = GuidedSearch(SERVED, level=LEVEL, earlier=[before])
    plans = asked(search, Crossing(80.0, 0.01), [Verdict.FEASIBLE])
    assert plans[-1].rate_per_s > 75.0
    assert plans[-1].level == LEVEL / 4.0, "it has had its share of the level"


def test_from_a_feasible_rate_that_was_tried_before_it_goes_up() -> None:
    before = CapacityLevel(60.0, Verdict.FEASIBLE, 1.5, 2000, probe=False)
    plans = asked(GuidedSearch(SERVED, level=LEVEL, earlier=[before]), Crossing(80.0, 0.01), [Verdict.FEASIBLE])
    assert [plan.probe for plan in plans] == [True, True, False]
    assert plans[-1].goes_up


def test_where_nothing_is_feasible_it_goes_down() -> None:
    search = GuidedSearch(SERVED, level=LEVEL)
    plans = asked(search, Crossing(70.0, 0.01), [Verdict.INFEASIBLE] * MOST_VERDICTS)
    rates = [plan.rate_per_s for plan in plans if not plan.probe]
    assert len(rates) == MOST_VERDICTS
    assert rates == sorted(rates, reverse=True)
