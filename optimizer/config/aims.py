"""What a study may seek: how sure its verdicts must be, and which objectives and limits its traffic can answer."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from optimizer.core.errors import InputError
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import RampArrivals, TraceArrivals
from optimizer.objectives import Objective, Slo, VerdictRules
from optimizer.objectives.objective import CAPACITY

_OF_SEVERAL_TOKENS = ("tpot", "itl")


class VerdictSection(BaseModel):
    """How sure a verdict must be."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    level: float = Field(
        default=0.05,
        ge=0.0001,
        lt=0.5,
        allow_inf_nan=False,
        description="Largest chance that a limit is wrongly called kept, and that it is wrongly called broken.",
    )
    tolerance: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Within this share of a limit, on either side, both verdicts are right; 0 is strict.",
    )
    error_rate: float = Field(
        default=0.01, ge=0, lt=1, allow_inf_nan=False, description="Largest share of requests that may fail."
    )

    @property
    def rules(self) -> VerdictRules:
        """The same for the judge."""
        return VerdictRules(self.level, self.tolerance, self.error_rate)


def check_aims(objective: Objective, slos: Sequence[Slo], workload: Workload, *, origin: str) -> None:
    """Refuses what no measurement under this traffic can answer.

    Args:
        objective: What is sought.
        slos: The limits.
        workload: The traffic.
        origin: Where the objective came from, for messages.

    Raises:
        InputError: The objective lacks a limit or a rate, sets a rate that the traffic has of its own, or asks for gaps
            between tokens of answers of one token.
    """
    if objective.needs_limits and not slos:
        raise InputError(
            f"{origin}: the objective {objective.name} needs a limit that requests must meet",
            hint="such as slos: [p99_e2e_ms=800], or --slo p99_e2e_ms=800",
        )
    if objective.needs_rate and isinstance(workload.arrivals, ClosedLoop):
        raise InputError(
            f"{origin}: the objective {objective.name} compares latency at a fixed rate, and the workload "
            f"{workload.name} has none: it keeps {workload.arrivals.words}",
            hint="take arrivals of kind poisson, gamma or constant with a rate_per_s, or another objective",
        )
    if objective.metric == CAPACITY:
        _check_capacity(objective, slos, workload, origin)
    if workload.longest_answer_tokens == 1:
        _check_single_tokens(objective, slos, workload, origin)


def _check_capacity(objective: Objective, slos: Sequence[Slo], workload: Workload, origin: str) -> None:
    relative = next((slo for slo in slos if slo.is_relative), None)
    if relative is not None:
        raise InputError(
            f"{origin}: the objective {objective.name} tries many rates, and the limit '{relative}' is a multiple of "
            "what the baseline measures at one",
            hint=f"state it in milliseconds, such as {relative.name}=800",
        )
    if isinstance(workload.arrivals, TraceArrivals | RampArrivals):
        raise InputError(
            f"{origin}: the objective {objective.name} sets the arrival rate itself, and the workload {workload.name} "
            f"has its own times ({workload.arrivals.words})",
            hint="take arrivals of kind closed_loop, poisson, gamma or constant",
        )
    if workload.sessions is not None:
        raise InputError(
            f"{origin}: the objective {objective.name} counts requests by the rate at which they come, and those of "
            f"the workload {workload.name} follow each other in sessions",
            hint="take a workload of single requests",
        )


def _check_single_tokens(objective: Objective, slos: Sequence[Slo], workload: Workload, origin: str) -> None:
    asked = [str(slo) for slo in slos if slo.metric in _OF_SEVERAL_TOKENS]
    if objective.latency in _OF_SEVERAL_TOKENS:
        asked.append(f"objective {objective.name}")
    if asked:
        raise InputError(
            f"{origin}: {asked[0]} needs answers of two tokens or more, and those of the workload {workload.name} "
            "have one",
            hint="limit ttft or e2e instead, or let the answers be longer",
        )
