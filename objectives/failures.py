"""Whether too many requests fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimizer.core.scoring import Verdict
from optimizer.core.statistics import share_interval
from optimizer.objectives.rules import VerdictRules
from optimizer.objectives.sequential import SloTest, judge


@dataclass(frozen=True, slots=True)
class FailureShare:
    """What is known of the share of requests that fail.

    Attributes:
        verdict: INFEASIBLE once the sequential test excludes the allowed share; else FEASIBLE while no more than that
            were seen to fail, and UNDECIDED while it is more.
        low: Lower end of the interval for the share of independent requests; None of no request.
        high: Upper end, or None.
        decided_at: Number of requests at the look that decided against; None when none did.
    """

    verdict: Verdict
    low: float | None
    high: float | None
    decided_at: int | None = None


def judge_failures(failed: npt.NDArray[np.bool_], rules: VerdictRules) -> FailureShare:
    """Judges the requests that have ended.

    To show that a share of 1 % holds takes over a thousand requests without a failure, and failures count as over
    every limit as well. So the observed share is enough for it, and only the other way the test must be sure.

    Args:
        failed: In order of schedule, shape (n,).
        rules: The allowed share and the error level.
    """
    count, n = int(np.count_nonzero(failed)), failed.size
    if n == 0:
        return FailureShare(Verdict.UNDECIDED, None, None)
    low, high = share_interval(count, n, level=rules.confidence)
    if count <= rules.error_rate * n:
        return FailureShare(Verdict.FEASIBLE, low, high)
    if rules.error_rate <= 0.0:
        return FailureShare(Verdict.INFEASIBLE, low, high, n)
    test = SloTest(100.0 * (1.0 - rules.error_rate), 1.0, rules.level, tolerance=0.0)
    state = judge(test, np.zeros(n), failed)
    if state.verdict is Verdict.INFEASIBLE:
        return FailureShare(Verdict.INFEASIBLE, low, high, state.decided_at)
    return FailureShare(Verdict.UNDECIDED, low, high)
