"""When a running load may stop: looks at a run that is made by hand, second by second."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from optimizer.core.measurement import UNFINISHED, LoadResult
from optimizer.core.record import TrialRecord
from optimizer.core.scoring import Score, Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.core.trial import TrialRole, TrialState
from optimizer.objectives import OBJECTIVES, VerdictRules, parse_slo, resolve_limits
from optimizer.objectives.score import check_limit
from optimizer.tuning.aim import Aim, StudyGoal
from optimizer.tuning.decision import StopDecision

THROUGHPUT = OBJECTIVES["throughput"]
Stopped = tuple[int | None, StopReason | None]


class Run:
    """A load of `rate` requests a second with known latencies."""

    def __init__(self, rate: float, p99_ms: float, *, seed: int = 0, n: int = 12_000, fails: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.scheduled_s = np.arange(n) / rate
        self.e2e_s = rng.lognormal(0.0, 0.3, n) / math.exp(2.3263 * 0.3) * p99_ms / 1000.0
        self.failed = rng.random(n) < fails
        self.tokens_per_s = rng.poisson(rate * 8, size=math.ceil(n / rate))

    def at(self, now_s: float, *, stopped_by: StopReason | None = None) -> LoadResult:
        """What is known at that time; with a reason, what is known after the drain that follows."""
        n = int(np.searchsorted(self.scheduled_s, now_s))
        scheduled_s, ended_s = self.scheduled_s[:n], self.scheduled_s[:n] + self.e2e_s[:n]
        over = np.ones(n, dtype=np.bool_) if stopped_by is not None else ended_s <= now_s
        errors = tuple(
            UNFINISHED if not done else "HTTP 503" if failed else None
            for done, failed in zip(over, self.failed[:n], strict=True)
        )
        ok = sum(error is None for error in errors)
        return LoadResult(
            window_start_s=0.0,
            window_s=now_s,
            scheduled_s=scheduled_s,
            sent_s=scheduled_s,
            first_token_s=scheduled_s + self.e2e_s[:n] / 5.0,
            last_token_s=np.where(over, ended_s, np.nan),
            prompt_tokens=np.full(n, 16),
            output_tokens=np.full(n, 8),
            errors=errors,
            itl_s=np.full(ok * 7, 0.01),
            window_output_tokens=int(self.tokens_per_s[: int(now_s)].sum()),
            window_requests=ok,
            tokens_per_s_bins=self.tokens_per_s[: int(now_s)],
            now_s=now_s,
            stopped_by=stopped_by,
        )


def aim(*slos: str, incumbent: float | None = None, rules: VerdictRules | None = None) -> Aim:
    limits = resolve_limits([parse_slo(text, origin="test") for text in slos], {})
    return Aim(THROUGHPUT, limits, rules=rules or VerdictRules(), incumbent=incumbent)


def stops(run: Run, what: Aim, *, until_s: int = 100) -> Stopped:
    """The first second in which there is a reason to stop, and the reason."""
    decision = StopDecision(what)
    for second in range(1, until_s + 1):
        reason = decision(run.at(float(second)))
        if reason is not None:
            return second, reason
    return None, None


def test_a_setting_well_below_its_limit_is_decided_long_before_the_budget() -> None:
    second, reason = stops(Run(100.0, 500.0), aim("p99_e2e_ms=800"))
    assert reason is StopReason.DECIDED
    assert second is not None
    assert 12 < second < 40


def test_a_hopeless_setting_ends_the_load_within_seconds() -> None:
    second, reason = stops(Run(100.0, 1600.0), aim("p99_e2e_ms=800"))
    assert reason is StopReason.HOPELESS
    assert second is not None
    assert second <= 5


def test_a_broken_limit_ends_the_load_although_another_is_open() -> None:
    assert stops(Run(100.0, 1600.0), aim("p99_ttft_ms=330", "p90_e2e_ms=500"))[1] is StopReason.HOPELESS


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("p99_ms", [600.0, 760.0, 850.0, 1000.0])
def test_what_was_decided_while_it_ran_is_what_the_whole_run_is_judged_to_be(p99_ms: float, seed: int) -> None:
    run, what = Run(100.0, p99_ms, seed=seed), aim("p99_e2e_ms=800")
    second, reason = stops(run, what, until_s=60)
    if second is None or reason is None:
        return
    final = check_limit(what.limits[0], run.at(float(second), stopped_by=reason), what.rules).verdict
    assert final is {StopReason.DECIDED: Verdict.FEASIBLE, StopReason.HOPELESS: Verdict.INFEASIBLE}[reason]


def test_slow_requests_under_way_hold_the_verdict_back() -> None:
    """The fast half of a setting that is far over its limit ends first; by itself it would be feasible."""
    run = Run(100.0, 400.0)
    run.e2e_s[::2] = 60.0
    decision = StopDecision(aim("p90_e2e_ms=800"))
    reasons = [decision(run.at(float(second))) for second in range(1, 6)]
    assert StopReason.DECIDED not in reasons
    assert reasons[-1] is StopReason.HOPELESS, "a request under way that is older than the limit is over it"


def test_without_a_limit_the_window_alone_decides() -> None:
    assert stops(Run(100.0, 500.0), aim()) == (1, StopReason.DECIDED)


def test_failures_end_the_load_when_they_are_surely_too_many() -> None:
    assert stops(Run(100.0, 500.0, fails=0.3), aim())[1] is StopReason.HOPELESS
    allowed = VerdictRules(error_rate=0.5)
    assert stops(Run(100.0, 500.0, fails=0.3), aim(rules=allowed))[1] is StopReason.DECIDED


def test_a_setting_that_cannot_beat_the_best_is_given_up() -> None:
    run = Run(100.0, 790.0)
    second, reason = stops(run, aim("p99_e2e_ms=800", incumbent=1200.0))
    assert reason is StopReason.DOMINATED
    assert second is not None
    assert second <= 15
    assert stops(run, aim("p99_e2e_ms=800", incumbent=790.0), until_s=14) == (None, None)


def test_an_objective_that_is_no_rate_is_never_dominated() -> None:
    limits = resolve_limits([parse_slo("p99_e2e_ms=800", origin="test")], {})
    lowest = Aim(OBJECTIVES["p99_ttft"], limits, incumbent=0.001)
    assert stops(Run(100.0, 790.0), lowest, until_s=14) == (None, None)


def test_a_mean_is_decided_either_way() -> None:
    assert stops(Run(100.0, 800.0), aim("mean_e2e_ms=600"))[1] is StopReason.DECIDED
    assert stops(Run(100.0, 800.0), aim("mean_e2e_ms=200"))[1] is StopReason.HOPELESS
    assert stops(Run(100.0, 800.0, fails=0.5), aim("mean_e2e_ms=600"))[1] is StopReason.HOPELESS


def test_the_percentile_that_sets_the_limits_is_measured_until_the_data_bound_it() -> None:
    relative = (parse_slo("p99_e2e<=1.0x", origin="test"),)
    second, reason = stops(Run(100.0, 500.0), Aim(THROUGHPUT, to_measure=relative))
    assert reason is StopReason.DECIDED
    assert second is not None
    assert 3 <= second <= 10
    mean = Aim(THROUGHPUT, to_measure=(parse_slo("mean_e2e<=1x", origin="test"),))
    assert stops(Run(100.0, 500.0), mean)[1] is StopReason.DECIDED


def test_a_look_that_comes_too_soon_for_the_next_judgement_is_cheap() -> None:
    strict = VerdictRules(tolerance=0.0)
    run, what = Run(100.0, 795.0), aim("p99_e2e_ms=800", rules=strict, incumbent=700.0)
    decision, look = StopDecision(what), run.at(100.0)
    decision(look)
    took_s = []
    for _ in range(20):
        begun_s = time.process_time()
        decision(look)
        took_s.append(time.process_time() - begun_s)
    assert min(took_s) < 0.015, "1 to 2 ms on an idle core at 10,000 requests"


def trial(number: int, role: TrialRole, state: TrialState, value: float = 100.0) -> TrialRecord:
    scored = Score("output_tokens_per_s", value, True, Verdict.FEASIBLE)
    return TrialRecord("s", number, role, state, metrics={"p99_e2e_ms": 500.0}, score=scored)


def test_only_a_search_trial_is_measured_against_the_best_feasible_one() -> None:
    slos = [parse_slo(text, origin="test") for text in ("p99_e2e<=1.2x", "p99_ttft_ms=90")]
    goal = StudyGoal(THROUGHPUT, tuple(slos))
    trials = [
        trial(0, TrialRole.BASELINE, TrialState.FEASIBLE),
        trial(1, TrialRole.DEFAULT, TrialState.INFEASIBLE, 900.0),
        trial(2, TrialRole.SEARCH, TrialState.FEASIBLE, 150.0),
    ]
    of_search = goal.aim(TrialRole.SEARCH, trials)
    assert [limit.limit_ms for limit in of_search.limits] == [600.0, 90.0]
    assert (of_search.to_measure, of_search.incumbent) == ((), 150.0)
    for role in (TrialRole.BASELINE, TrialRole.DEFAULT, TrialRole.CONFIRM):
        assert goal.aim(role, trials).incumbent is None
    of_baseline = goal.aim(TrialRole.BASELINE, [])
    assert [slo.name for slo in of_baseline.to_measure] == ["p99_e2e_ms"]
    assert [limit.limit_ms for limit in of_baseline.limits] == [90.0]
