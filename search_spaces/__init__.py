"""What a study may try: typed parameters with vLLM's own flag names, rules between them, and flags nobody may set."""

from optimizer.search_spaces.choices import BoolParameter, ChoiceParameter
from optimizer.search_spaces.denied import (
    DENIED_FLAGS,
    GAMING_VARIABLES,
    denied_reason,
    denied_variable_reason,
    gaming_reason,
)
from optimizer.search_spaces.fixing import Narrowed, fix_flags
from optimizer.search_spaces.flag_paths import get_flag, leaf_flags, merge_flags, overlap, set_flag
from optimizer.search_spaces.parameter import Parameter
from optimizer.search_spaces.ranges import GIB, FloatParameter, IntParameter, Side, memory_fraction
from optimizer.search_spaces.rules import BUILT_IN_RULES, Rule
from optimizer.search_spaces.space import SearchSpace
from optimizer.search_spaces.values import FieldProblem

__all__ = [
    "BUILT_IN_RULES",
    "DENIED_FLAGS",
    "GAMING_VARIABLES",
    "GIB",
    "BoolParameter",
    "ChoiceParameter",
    "FieldProblem",
    "FloatParameter",
    "IntParameter",
    "Narrowed",
    "Parameter",
    "Rule",
    "SearchSpace",
    "Side",
    "denied_reason",
    "denied_variable_reason",
    "fix_flags",
    "gaming_reason",
    "get_flag",
    "leaf_flags",
    "memory_fraction",
    "merge_flags",
    "overlap",
    "set_flag",
]
