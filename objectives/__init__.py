"""What a study seeks and what it must keep: objectives, limits, and the score of a measurement."""

from optimizer.objectives.limits import Limit, resolve_limits
from optimizer.objectives.objective import OBJECTIVES, Objective
from optimizer.objectives.score import ERROR_RATE_LIMIT, score
from optimizer.objectives.slo import Slo, check_slos, parse_slo

__all__ = [
    "ERROR_RATE_LIMIT",
    "OBJECTIVES",
    "Limit",
    "Objective",
    "Slo",
    "check_slos",
    "parse_slo",
    "resolve_limits",
    "score",
]
