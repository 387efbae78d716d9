"""Which strategy a name stands for."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeAlias

from optimizer.core.errors import InputError
from optimizer.core.samplers import SAMPLERS
from optimizer.engine.memory import MemoryPrediction
from optimizer.search_spaces import SearchSpace
from optimizer.tuning.gp.prior import PriorModel
from optimizer.tuning.strategies.grid import Grid
from optimizer.tuning.strategies.one_at_a_time import OneAtATime
from optimizer.tuning.strategies.optuna_gp import OptunaGp
from optimizer.tuning.strategies.random_search import RandomSearch
from optimizer.tuning.strategies.tpe import Tpe
from optimizer.tuning.strategy import Params, Strategy

NAMES: tuple[str, ...] = tuple(SAMPLERS)
MODELLING = frozenset({"tpe", "gp", "optuna-gp"})
"""Those that learn from every trial, and gain by first trials from knowledge and by flips; the others keep to a plan of
their own."""

MemoryOf: TypeAlias = Callable[[Params], MemoryPrediction | None]


def strategy_named(
    name: str, space: SearchSpace, *, prior: PriorModel | None = None, memory_of: MemoryOf | None = None
) -> Strategy:
    """The strategy of that name.

    Args:
        name: One of `NAMES`.
        space: The parameters.
        prior: What `gp` starts its models from.
        memory_of: What `gp` knows of the memory that a setting leaves.

    Raises:
        InputError: There is none of that name, or what it needs is not installed.
    """
    match name:
        case "tpe":
            return Tpe(space)
        case "gp":
            from optimizer.tuning.gp.strategy import GpStrategy

            return GpStrategy(space, prior=prior, memory_of=memory_of)
        case "optuna-gp":
            return OptunaGp(space)
        case "random":
            return RandomSearch(space)
        case "grid":
            return Grid(space)
        case "one-at-a-time":
            return OneAtATime(space)
    near = difflib.get_close_matches(name, NAMES, n=1)
    raise InputError(
        f"--sampler {name}: not known{f'; did you mean {near[0]}?' if near else ''}",
        hint=f"allowed: {', '.join(NAMES)}",
    )
