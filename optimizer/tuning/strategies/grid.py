"""The usual grid: how many sequences by how many tokens a step, all else left as it is.

vLLM's own `auto_tune` script walks these two flags.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from optimizer.search_spaces import SearchSpace
from optimizer.tuning.nearest_fit import grid
from optimizer.tuning.strategies.levels import COARSE, FINE, base_setting, key_of, tried_keys
from optimizer.tuning.strategy import Ask, Params

AXES = ("max-num-seqs", "max-num-batched-tokens")


class Grid:
    """Every pair of values of the two flags, the first varied slowest; those of the space that it searches.

    A space that searches neither is walked along its first two parameters. When the coarse grid is through a finer one
    follows, and then the strategy has nothing more to say.

    Args:
        space: The parameters.
    """

    name = "grid"

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        wanted = [n for flag in AXES for n, p in space.parameters.items() if flag in p.flag_names(n)]
        self._axes = wanted or list(space.parameters)[: len(AXES)]

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """Those that were not tried, in order."""
        base = base_setting(self._space, ask)
        tried = tried_keys(ask)
        for points in (COARSE, FINE):
            for values in itertools.product(*(grid(self._space.parameters[name], points) for name in self._axes)):
                full = {**base, **dict(zip(self._axes, values, strict=True))}
                params = self._space.existing(full)
                if key_of(params) not in tried and ask.keeps_rules(params):
                    yield full
