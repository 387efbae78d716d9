"""Settings at random, which learn nothing: the measure of every other strategy."""

from __future__ import annotations

from collections.abc import Iterator

from optimizer.search_spaces import SearchSpace
from optimizer.tuning.random_settings import random_setting
from optimizer.tuning.strategies.draw import fresh
from optimizer.tuning.strategy import Ask, Params


class RandomSearch:
    """Each parameter for itself, evenly on its own scale.

    Args:
        space: The parameters.
    """

    name = "random"

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """Endless; without repeats as long as there is anything else."""
        return fresh(self._space, ask, self._drawn(ask))

    def _drawn(self, ask: Ask) -> Iterator[Params]:
        while True:
            yield random_setting(self._space.parameters, ask.rng)
