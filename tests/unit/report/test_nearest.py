"""What a study without a feasible trial still tells: which single limit, relaxed to which value, would have done."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import TrialRole, TrialState
from optimizer.report.closing import print_closing
from optimizer.report.json_view import study_view
from optimizer.report.nearest import best_relaxation, binding_limit, least_relaxation, nearest_miss

NAMES = ("p99_e2e_ms", "p99_ttft_ms", "error_rate")


def constraint(name: str, limit: float, observed: float, high: float | None, *, undecided: bool = False) -> Constraint:
    verdict = Verdict.FEASIBLE if observed <= limit else Verdict.INFEASIBLE
    if undecided:
        verdict = Verdict.UNDECIDED
    return Constraint(name, limit, observed, observed * 0.9, high, math.log(observed / limit), verdict)


def trial(number: int, value: float, *constraints: Constraint) -> TrialRecord:
    verdicts = {c.verdict for c in constraints}
    verdict = next((v for v in (Verdict.INFEASIBLE, Verdict.UNDECIDED) if v in verdicts), Verdict.FEASIBLE)
    record = TrialRecord("s", number, TrialRole.SEARCH, TrialState(verdict.value))
    return replace(record, score=Score("output_tokens_per_s", value, True, verdict, constraints))


E2E_950 = constraint("p99_e2e_ms", 800.0, 900.0, 947.3)
E2E_HELD = constraint("p99_e2e_ms", 800.0, 700.0, 750.0)
TTFT_300 = constraint("p99_ttft_ms", 200.0, 290.0, 300.0)
TTFT_HELD = constraint("p99_ttft_ms", 200.0, 150.0, 160.0)


def test_the_limit_is_relaxed_to_where_the_interval_of_the_trial_ends():
    found = least_relaxation([trial(3, 500.0, E2E_950, TTFT_HELD)])
    assert found is not None
    assert (found.trial.number, found.name, found.limit, found.needed) == (3, "p99_e2e_ms", 800.0, 948.0)
    assert found.percent == pytest.approx(18.5)
    assert found.is_sure


def test_the_least_and_the_one_for_the_best_may_differ():
    trials = [trial(2, 400.0, E2E_950, TTFT_HELD), trial(3, 900.0, E2E_HELD, TTFT_300)]
    least = least_relaxation(trials)
    best = best_relaxation(trials, maximise=True)
    assert least is not None
    assert best is not None
    assert (least.trial.number, best.trial.number, best.name) == (2, 3, "p99_ttft_ms")
    assert best_relaxation(trials, maximise=False) == least


def test_a_trial_that_breaks_two_limits_is_not_helped_by_one():
    assert least_relaxation([trial(2, 400.0, E2E_950, TTFT_300)]) is None
    assert best_relaxation([trial(2, 400.0, E2E_950, TTFT_300)], maximise=True) is None


def test_the_share_of_failed_requests_is_no_limit_to_relax():
    assert least_relaxation([trial(2, 400.0, E2E_HELD, constraint("error_rate", 0.01, 0.2, 0.3))]) is None


def test_a_run_cut_short_says_only_what_was_seen():
    cut = replace(E2E_950, high=None)
    found = least_relaxation([trial(2, 400.0, cut, TTFT_HELD), trial(3, 1.0, E2E_HELD, TTFT_300)])
    assert found is not None
    assert found.trial.number == 3, "a sure one comes first, however far"
    unsure = best_relaxation([trial(2, 400.0, cut, TTFT_HELD)], maximise=True)
    assert unsure is not None
    assert (unsure.needed, unsure.is_sure) == (900.0, False)


def test_a_figure_without_an_interval_counts_as_certain():
    """So it was judged: an evaluator that tells no standard error is taken at its word."""
    found = least_relaxation([trial(2, 400.0, replace(E2E_950, low=None, high=None), TTFT_HELD)])
    assert found is not None
    assert (found.needed, found.is_sure) == (900.0, True)


def test_of_trials_that_are_equally_good_the_best_relaxation_is_the_least():
    further = constraint("p99_ttft_ms", 200.0, 690.0, 700.0)
    trials = [trial(2, 900.0, E2E_HELD, further), trial(3, 900.0, E2E_HELD, TTFT_300), trial(4, 1.0, E2E_950)]
    best = best_relaxation(trials, maximise=True)
    assert best is not None
    assert (best.trial.number, best.needed) == (3, 300.0)


def test_an_undecided_trial_needs_its_interval_below_the_limit():
    undecided = constraint("p99_e2e_ms", 800.0, 790.0, 830.0, undecided=True)
    found = least_relaxation([trial(2, 400.0, undecided, TTFT_HELD)])
    assert found is not None
    assert found.needed == 830.0


@st.composite
def measured(draw: st.DrawFn) -> TrialRecord:
    constraints = []
    for name in NAMES:
        limit = draw(st.sampled_from([0.01, 200.0, 800.0]))
        observed = limit * draw(st.floats(0.2, 5.0))
        factor = draw(st.none() | st.just(math.inf) | st.floats(1.0, 2.0))
        high = None if factor is None else observed * factor
        constraints.append(constraint(name, limit, observed, high, undecided=draw(st.booleans())))
    return trial(draw(st.integers(0, 99)), draw(st.floats(-10.0, 1e6) | st.just(math.nan)), *constraints)


@given(trials=st.lists(measured(), max_size=6), maximise=st.booleans())
def test_what_is_named_is_enough_and_nothing_smaller_is_sure(trials, maximise):
    """The relaxed limit lies above all that its trial is known to reach, and its other limits held already."""
    least, best = least_relaxation(trials), best_relaxation(trials, maximise=maximise)
    for found in (least, best):
        if found is None:
            continue
        assert found.trial.score is not None
        (broken,) = (c for c in found.trial.score.constraints if c.verdict is not Verdict.FEASIBLE)
        assert broken.name == found.name != "error_rate"
        reached = broken.high if found.is_sure else broken.observed
        assert reached is not None
        assert found.limit < reached <= found.needed <= reached * 1.0101
        assert found.percent > 0
    if least is not None and best is not None and best.is_sure:
        assert least.percent <= best.percent
    if best is not None:
        assert least is not None


@given(trials=st.lists(measured(), min_size=1, max_size=4))
def test_the_json_says_the_same(sample_study, trials):
    infeasible = [t for t in trials if t.state is not TrialState.FEASIBLE]
    view = study_view(sample_study, infeasible).nothing_feasible
    if not infeasible:
        assert view is None
        return
    assert view is not None
    least, miss, binding = least_relaxation(infeasible), nearest_miss(infeasible), binding_limit(infeasible)
    assert (view.least_relaxation is None) == (least is None)
    if least is not None and view.least_relaxation is not None:
        assert (view.least_relaxation.trial, view.least_relaxation.needed) == (least.trial.number, least.needed)
    assert (None if view.nearest is None else view.nearest.trial) == (None if miss is None else miss.trial.number)
    assert (None if view.binding is None else view.binding.limit) == (None if binding is None else binding[0])


@pytest.fixture(scope="module")
def sample_study():
    return StudyRecord("s", datetime.now(UTC), {}, {}, "output_tokens_per_s", maximise=True)


def test_the_closing_report_says_what_to_relax_and_how(sample_study, make_closing):
    trials = [trial(2, 400.0, E2E_950, TTFT_HELD), trial(3, 900.0, E2E_HELD, TTFT_300)]
    console = Console(file=io.StringIO(), width=100, highlight=False, markup=False)
    print_closing(console, make_closing(sample_study, trials))
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    assert "Least to relax: P99 E2E from 800 ms to 948 ms (+18.5 %) would let #2 with 400" in text
    assert "--slo p99_e2e_ms=948" in text
    assert "For the best of what was seen: P99 TTFT from 200 ms to 300 ms (+50.0 %) would let #3 with 900" in text


def test_the_closing_report_says_where_no_single_limit_is_enough(sample_study, make_closing):
    console = Console(file=io.StringIO(), width=100, highlight=False, markup=False)
    print_closing(console, make_closing(sample_study, [trial(2, 400.0, E2E_950, TTFT_300)]))
    assert isinstance(console.file, io.StringIO)
    assert "No single limit, relaxed alone," in console.file.getvalue()
