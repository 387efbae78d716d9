"""Every proposal of every strategy keeps the space, whatever the space and whatever came of the trials before."""

from __future__ import annotations

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from optimizer.core.errors import InputError
from tests.contract.strategies.studies import (
    FAST,
    OUTCOMES,
    SLOW,
    MadeUpStudy,
    assert_kept,
    some_cannot_start,
    spaces,
)

GIVEN = {
    "space": spaces(),
    "seed": st.integers(0, 2**32),
    "outcome": st.sampled_from(["mixed", *OUTCOMES]),
    "maximise": st.booleans(),
    "screened": st.booleans(),
}


def check_proposals(study: MadeUpStudy, outcome: str, trials: int) -> None:
    try:
        proposals = study.run(trials, OUTCOMES.get(outcome))
    except InputError:
        # Two rules may leave next to nothing, and of that nothing may start; a space without either has a setting.
        assume(not study.space.rules and study.check is None)
        raise
    assert proposals[1] == {}, "trial 1 sets no searched flag"
    for proposal in proposals[2:]:
        assert_kept(study.space, proposal)
        assert study.check is None or study.check(proposal) is None, "what cannot start is not proposed"


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=10)
@given(**GIVEN)
def test_every_proposal_keeps_conditions_rules_and_ranges(name, space, seed, outcome, maximise, screened):
    check = some_cannot_start if screened else None
    check_proposals(MadeUpStudy(name, space, seed, maximise=maximise, check=check), outcome, 10)


@pytest.mark.parametrize("name", SLOW)
@settings(max_examples=3, phases=[Phase.generate])
@given(**GIVEN)
def test_a_slow_strategy_does_so_too(name, space, seed, outcome, maximise, screened):
    check = some_cannot_start if screened else None
    check_proposals(MadeUpStudy(name, space, seed, maximise=maximise, check=check), outcome, 8)
