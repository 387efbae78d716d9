"""One study on a virtual engine, and what it would have recommended after so many trials."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from optimizer.core.record import ParamValue, TrialRecord, best_trial
from optimizer.core.trial import TrialState
from optimizer.tuning.recommend import recommend
from tests.bench.search.measuring import measured
from tests.bench.search.rows import Mark, Pick, Row, versions
from tests.bench.search.setups import SETUPS, Setup, make_search, prior_of
from tests.bench.search.situation import Situation

MARKS = (10, 20, 30, 60)
_LETTERS = {
    TrialState.FEASIBLE: "f",
    TrialState.INFEASIBLE: "i",
    TrialState.UNDECIDED: "u",
    TrialState.FAILED: "x",
}


def run_study(situation: Situation, strategy: str, *, trials: int, optimum: float, digest: str, claim: str = "") -> Row:
    """Ask, measure, tell, until there are so many trials; looked at after each of `MARKS`.

    Args:
        situation: What it is run on.
        strategy: One of `SETUPS`.
        trials: Launches, baseline and defaults among them.
        optimum: The best that is known, larger is better.
        digest: Of the situation's equations.
        claim: What the rows are to show, and how many variants were tried before.
    """
    records: list[TrialRecord] = []
    setup = SETUPS[strategy]
    search = make_search(situation, setup, lambda: records, seed=situation.seed)
    asked_s: list[float] = []
    marks: dict[int, Mark] = {}
    for _ in range(trials):
        begun_s = time.perf_counter()
        number, params = search.ask()
        asked_s.append(time.perf_counter() - begun_s)
        trial = measured(situation, number, params)
        records.append(trial)
        search.tell(trial)
        if len(records) in MARKS or len(records) == trials:
            marks[len(records)] = _mark(situation, setup, records, asked_s)
    worths = [situation.worth(situation.truth(trial.params)) for trial in records]
    return Row(
        situation=situation.name,
        seed=situation.seed,
        strategy=strategy,
        trials=trials,
        optimum=optimum,
        best_launched=max((worth for worth in worths if math.isfinite(worth)), default=None),
        states="".join(_LETTERS[trial.state] for trial in records),
        marks=marks,
        claim=claim,
        digest=digest,
        versions=versions(),
    )


def _mark(situation: Situation, setup: Setup, records: Sequence[TrialRecord], asked_s: Sequence[float]) -> Mark:
    best = best_trial(list(records), maximise=situation.maximise)
    recommended = recommend(records, situation.space, prior=prior_of(situation, setup))
    return Mark(
        best=None if best is None else pick(situation, best.params),
        recommended=None if recommended is None else pick(situation, recommended.params),
        crashes=sum(trial.state is TrialState.FAILED for trial in records),
        launches=len(records),
        ask_s=float(np.mean(asked_s)),
        ask_s_max=float(np.max(asked_s)),
    )


def pick(situation: Situation, params: Mapping[str, ParamValue]) -> Pick:
    """What a setting is truly worth."""
    truth = situation.truth(params)
    if truth.crash is not None:
        return Pick(params=dict(params), value=None, excess=None)
    return Pick(params=dict(params), value=situation.value(truth), excess=situation.excess(truth))
