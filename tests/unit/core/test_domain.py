"""States and stages of a trial, failures, errors and their exit codes, what a load run's arrays say."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.errors import AutotuneError, HostError, InputError, Interrupted, NothingFeasible
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.measurement import LoadResult
from optimizer.core.trial import TRANSITIONS, Stage, TrialState

FINAL = {"feasible", "infeasible", "undecided", "dominated", "failed", "rejected"}


def test_every_state_has_its_successors():
    assert set(TRANSITIONS) == set(TrialState)


def test_a_final_trial_stays_as_it_is():
    assert {state.value for state in TrialState if state.is_final} == FINAL
    assert all(not TRANSITIONS[state] for state in TrialState if state.is_final)


def test_a_running_trial_may_end_in_every_other_state():
    assert TRANSITIONS[TrialState.RUNNING] == set(TrialState) - {TrialState.RUNNING}


def test_an_interrupted_trial_can_only_run_again():
    assert TRANSITIONS[TrialState.INTERRUPTED] == {TrialState.RUNNING}


def test_every_state_can_be_reached():
    reached = {TrialState.RUNNING} | {after for following in TRANSITIONS.values() for after in following}
    assert reached == set(TrialState)


def test_kinds_of_failure_are_written_as_they_are_named():
    """Records keep the values: renaming one makes old histories unreadable."""
    assert all(kind.value == kind.name.lower() for kind in FailureKind)


def test_a_failure_is_final_unless_it_says_otherwise():
    failure = Failure(FailureKind.UNKNOWN, Stage.LAUNCHING, Blame.CONFIG, "gone")
    assert not failure.retryable
    assert failure.violation is None


@pytest.mark.parametrize(
    ("error", "code"), [(AutotuneError, 1), (InputError, 2), (NothingFeasible, 3), (HostError, 4), (Interrupted, 130)]
)
def test_exit_codes(error, code):
    raised = error("wrong", hint="do this")
    assert (raised.exit_code, str(raised), raised.hint) == (code, "wrong", "do this")
    assert isinstance(raised, AutotuneError)


def test_an_api_key_goes_into_the_header_and_into_no_message():
    endpoint = EngineEndpoint("http://127.0.0.1:1", "nonce", api_key="pl4nted")
    assert endpoint.headers == {"Authorization": "Bearer pl4nted"}
    assert "pl4nted" not in repr(endpoint)
    assert EngineEndpoint("http://127.0.0.1:1", "nonce").headers == {}


def test_latencies_are_those_of_the_successful_requests_from_their_scheduled_start():
    load = LoadResult(
        window_start_s=0.0,
        window_s=10.0,
        scheduled_s=np.array([1.0, 2.0, 3.0, 4.0]),
        sent_s=np.array([1.5, 2.0, 3.0, 4.0]),
        first_token_s=np.array([2.0, 2.5, np.nan, 4.5]),
        last_token_s=np.array([4.0, 2.5, np.nan, 9.0]),
        prompt_tokens=np.array([5, 5, 5, 5]),
        output_tokens=np.array([5, 1, 0, 9]),
        errors=(None, None, "HTTP 500", "short answer"),
        itl_s=np.array([]),
        window_output_tokens=6,
        window_requests=2,
    )
    assert load.ok.tolist() == [True, True, False, False]
    assert load.ttft_s.tolist() == [1.0, 0.5]
    assert load.e2e_s.tolist() == [3.0, 0.5]
    assert load.tpot_s.tolist() == [0.5], "a single token has no time per further token"
