"""What a study seeks and what it must keep: objectives, limits, and the score of a measurement."""

from optimizer.objectives.limits import Limit, resolve_limits
from optimizer.objectives.objective import OBJECTIVES, Objective
from optimizer.objectives.rules import USUAL_RULES, VerdictRules
from optimizer.objectives.score import score
from optimizer.objectives.slo import Slo, check_slos, parse_slo

__all__ = [
    "OBJECTIVES",
    "USUAL_RULES",
    "Limit",
    "Objective",
    "Slo",
    "VerdictRules",
    "check_slos",
    "parse_slo",
    "resolve_limits",
    "score",
]
