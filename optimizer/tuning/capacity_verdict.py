"""When the load at one rate may stop, and what is told of the rate: with a model of the engine, and without one."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from optimizer.core.measurement import LoadResult
from optimizer.core.scoring import Verdict
from optimizer.core.stop_reason import StopReason
from optimizer.objectives.capacity import CapacityLevel, LevelPlan
from optimizer.objectives.score import check_failures, check_limit
from optimizer.objectives.shadow_verdict import Expectation
from optimizer.tuning.aim import Aim
from optimizer.tuning.capacity_level import (
    REQUESTS_IN_PROBE,
    LevelDecision,
    is_long_enough,
    judge_level,
    requests_of,
    requests_to_relax,
    settled,
)
from optimizer.tuning.capacity_shadow import EngineShadow

LATENCIES_IN_LOOKS: Final = (3.0, 5.0)
"""The window of the first look, and of later ones, lasts so many times the P99 in it: they ask for no verdict."""
REQUESTS_IN_LOOKS: Final = (REQUESTS_IN_PROBE, (10.0, 400))
"""So many times one allowed request over the limit, or so many requests, whichever is more; the same for verdicts."""
REQUESTS_IN_VERDICT: Final = (120.0, 1500)
LOOKS: Final = ((0.4, 0.25), (0.65, 0.25), (1.0, 0.5))
"""When the verdict is looked for, as shares of these requests, and which part of the error level each look has."""


class RateDecision(Protocol):
    """What is decided of one rate while it is loaded, and after."""

    def __call__(self, view: LoadResult) -> StopReason | None:
        """Asked once a second: why the load may stop, or None."""

    def level(self, load: LoadResult) -> CapacityLevel:
        """What the whole run came to."""


class AloneDecision:
    """As the sequential verdict has it, without a model."""

    def __init__(self, aim: Aim, plan: LevelPlan, served_per_s: float | None) -> None:
        self._aim, self._plan, self._served_per_s = aim, plan, served_per_s
        self._decision = LevelDecision(aim, plan, served_per_s)

    def __call__(self, view: LoadResult) -> StopReason | None:
        """See `LevelDecision`."""
        return self._decision(view)

    def level(self, load: LoadResult) -> CapacityLevel:
        """Judged by all requests; FEASIBLE only where the window was long enough."""
        return settled(judge_level(self._aim, self._plan, load), load, self._served_per_s)


class LookDecision:
    """A short look, for the model to learn from.

    Args:
        aim: What must hold.
        plan: Which rate.
        first: Whether it is the first.
    """

    def __init__(self, aim: Aim, plan: LevelPlan, *, first: bool) -> None:
        self._aim, self._plan = aim, plan
        which = 0 if first else 1
        self._latencies = LATENCIES_IN_LOOKS[which]
        self._requests = requests_of(REQUESTS_IN_LOOKS[which], aim.limits)

    def __call__(self, view: LoadResult) -> StopReason | None:
        """WINDOW when it is long enough."""
        enough = int(np.count_nonzero(view.ok)) >= self._requests and is_long_enough(view, self._latencies)
        return StopReason.WINDOW if enough else None

    def level(self, load: LoadResult) -> CapacityLevel:
        """Judged by all requests."""
        return judge_level(self._aim, self._plan, load)


class ShadowDecision:
    """A verdict by how the engine differs from the model.

    Args:
        aim: What must hold.
        plan: Which rate, and the error level.
        served_per_s: What the saturated engine serves.
        shadow: Hears what the engine does.
        expected: What the model does at this rate.
        number: Of the load run.
    """

    def __init__(
        self,
        aim: Aim,
        plan: LevelPlan,
        served_per_s: float,
        shadow: EngineShadow,
        expected: Expectation,
        number: int,
    ) -> None:
        # Takes a third of a second to load, in which no answer of a running load would be read.
        importlib.import_module("scipy.special")
        self._aim, self._plan, self._served_per_s, self._number = aim, plan, served_per_s, number
        self._shadow, self._expected = shadow, expected
        self._budget = requests_of(REQUESTS_IN_VERDICT, aim.limits)
        self._fewest = min(2 * requests_to_relax(plan.rate_per_s, served_per_s), self._budget)
        self._looks = list(LOOKS)
        self._verdict = Verdict.UNDECIDED

    def __call__(self, view: LoadResult) -> StopReason | None:
        """HOPELESS or DECIDED at one of the looks, BUDGET after the last; nothing before the window is long enough."""
        ended = int(np.count_nonzero(view.ok))
        if not self._looks or ended < max(self._looks[0][0] * self._budget, self._fewest) or not is_long_enough(view):
            return None
        self._look(view)
        if self._verdict is Verdict.INFEASIBLE:
            return StopReason.HOPELESS
        if self._verdict is Verdict.FEASIBLE:
            return StopReason.DECIDED
        return None if self._looks else StopReason.BUDGET

    def level(self, load: LoadResult) -> CapacityLevel:
        """What the whole run came to; one that its own window cut short is looked at once more, with what is left.

        Against FEASIBLE stand a queue that grew, requests that failed, and a percentile of the run itself beyond the
        tolerance, whatever the model explains of it.
        """
        level = judge_level(self._aim, self._plan, load)
        if (
            self._verdict is Verdict.UNDECIDED
            and self._looks
            and level.requests >= self._fewest
            and is_long_enough(load)
        ):
            self._looks = self._looks[-1:]
            self._look(load)
        rules = self._aim.rules
        if load.stopped_by is StopReason.SATURATED or check_failures(load, rules).verdict is Verdict.INFEASIBLE:
            return replace(level, verdict=Verdict.INFEASIBLE)
        checked = [check_limit(limit, load, rules) for limit in self._aim.limits]
        beyond = any(
            found.observed is None or found.observed > found.limit * (1.0 + rules.tolerance) for found in checked
        )
        contradicted = beyond and self._verdict is Verdict.FEASIBLE
        return replace(level, verdict=Verdict.UNDECIDED if contradicted else self._verdict)

    def _look(self, view: LoadResult) -> None:
        _, share = self._looks.pop(0)
        heard = self._shadow.heard(view, self._plan.rate_per_s, self._served_per_s, self._number)
        self._verdict = self._expected.verdict(heard, share * self._plan.level)
