"""One limit in JSON, whether of a trial or of a measurement without a study."""

from __future__ import annotations

from pydantic import Field

from optimizer.core.scoring import Constraint
from optimizer.report.json_view import finite
from optimizer.report.view import View


class LimitView(View):
    """One limit against the measurement, and what its verdict rests on."""

    name: str = Field(description="The limited metric.")
    limit: float = Field(description="Its limit, in the metric's unit.")
    observed: float | None = Field(description="What was measured; failed requests count as infinitely slow.")
    low: float | None = Field(description="Lower end of the interval; null when unbounded.")
    high: float | None = Field(description="Upper end of the interval; null when unbounded.")
    requests: int | None = Field(description="Requests, or gaps between tokens, it rests on; null in old records.")
    effective_requests: float | None = Field(description="Independent ones they are worth; null if not estimated.")
    verdict: str = Field(description="feasible, infeasible or undecided.")


def limit_view(constraint: Constraint) -> LimitView:
    """The limit without numbers that JSON cannot hold."""
    return LimitView(
        name=constraint.name,
        limit=constraint.limit,
        observed=finite(constraint.observed),
        low=finite(constraint.low),
        high=finite(constraint.high),
        requests=constraint.n,
        effective_requests=finite(constraint.n_effective),
        verdict=constraint.verdict.value,
    )
