"""From what an external evaluator reported to a trial's final record."""

from __future__ import annotations

import pytest

from optimizer.core.errors import InputError
from optimizer.core.record import TrialRecord
from optimizer.core.reported import ReportedMetrics
from optimizer.core.trial import TrialRole, TrialState
from optimizer.objectives import OBJECTIVES, parse_slo, resolve_limits
from optimizer.tuning.judging import judged
from optimizer.tuning.trial_pipeline import AttemptOutcome

RELATIVE = parse_slo("p99_e2e<=1.0x", origin="test")
BASELINE_METRICS = {"output_tokens_per_s": 100.0, "p99_e2e_ms": 800.0}


def final(values, errors=None, *, of_baseline=False) -> TrialRecord:
    trial = TrialRecord("s", 0, TrialRole.SEARCH, TrialState.RUNNING, notes=("asked",))
    outcome = AttemptOutcome(reported=ReportedMetrics(values, errors or {}))

    def limits(own):
        return resolve_limits([RELATIVE], own if of_baseline else BASELINE_METRICS, of_baseline=of_baseline)

    return judged(trial, outcome, objective=OBJECTIVES["throughput"], limits=limits)


@pytest.mark.parametrize(
    ("e2e_ms", "error_ms", "state"),
    [
        (700.0, None, TrialState.FEASIBLE),
        (900.0, None, TrialState.INFEASIBLE),
        (900.0, 1.0, TrialState.INFEASIBLE),
        (850.0, 300.0, TrialState.UNDECIDED),
    ],
)
def test_a_limit_relative_to_the_baseline_decides_the_state(e2e_ms, error_ms, state):
    values = {"output_tokens_per_s": 120.0, "p99_e2e_ms": e2e_ms}
    trial = final(values, None if error_ms is None else {"p99_e2e_ms": error_ms})
    assert (trial.state, trial.value, trial.metrics, trial.notes) == (state, 120.0, values, ("asked",))


def test_the_baseline_is_judged_by_its_own_figures():
    assert final(BASELINE_METRICS, {"p99_e2e_ms": 400.0}, of_baseline=True).state is TrialState.FEASIBLE


def test_nothing_is_a_multiple_of_zero():
    with pytest.raises(InputError, match="measured 0 ms"):
        final({"output_tokens_per_s": 1.0, "p99_e2e_ms": 0.0}, of_baseline=True)
