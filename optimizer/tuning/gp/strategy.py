"""The search by Gaussian processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.search_spaces import SearchSpace
from optimizer.tuning.gp.acquisition import Acquisition, incumbent
from optimizer.tuning.gp.candidates import pool, surroundings
from optimizer.tuning.gp.encoding import Encoding, Points
from optimizer.tuning.gp.outlook import Outlook, outlook
from optimizer.tuning.gp.prior import PriorModel
from optimizer.tuning.gp.ranking import Candidate, Ranking, climbed
from optimizer.tuning.gp.survival import MemoryOf
from optimizer.tuning.recommend import standing_of
from optimizer.tuning.repeat import to_repeat
from optimizer.tuning.strategy import Ask, Params, Seen

_CLIMBERS = 4
_CLIMB_STEPS = 1
_GOOD_ROWS = 3
_IMPOSSIBLE = -20.0


class GpStrategy:
    """One Gaussian process for the objective, one for each limit, one for crashes; constrained expected improvement.

    Args:
        space: What is searched.
        prior: A model of the engine; the processes learn what it misses.
        memory_of: What the memory account foretells of a setting.
    """

    name = "gp"

    def __init__(
        self, space: SearchSpace, *, prior: PriorModel | None = None, memory_of: MemoryOf | None = None
    ) -> None:
        self._space = space
        self._encoding = Encoding(space)
        self._prior = prior
        self._memory_of = memory_of
        self.expected_gain: float | None = None
        """What the last proposal is expected to bring over the best so far, as a share of it; None while no setting
        that was tried probably keeps the limits."""

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """The best so far where it should be measured again, then new settings, the best first.

        Comes to an end when every candidate was given.
        """
        expected = outlook(ask.history, self._encoding, prior=self._prior, memory_of=self._memory_of)
        pending = self._encoding.points(self._encoding.rows(ask.pending))
        served = _served(ask.history, expected)
        best = incumbent(expected, served)
        taken = frozenset(self._encoding.keys(np.vstack([expected.points.rows, pending.rows])))
        ranking = Ranking(ask, self._encoding, Acquisition(expected.believing(pending), best), taken)
        candidates = self._candidates(ranking, _good(expected, served), ask.rng)
        first = next(candidates, None)
        self.expected_gain = _share(first, known=best is not None)
        standing = standing_of(ask.history, expected, self._space)
        repeated = to_repeat(ask.history, expected, standing, 0.0 if first is None else math.exp(first.worth))
        if repeated is not None and _may_be_asked(ask, repeated):
            yield repeated
        while first is not None:
            self.expected_gain = _share(first, known=best is not None)
            yield first.params
            first = next(candidates, None)

    def _candidates(self, ranking: Ranking, good: FloatArray, rng: np.random.Generator) -> Iterator[Candidate]:
        """Distinct ones, the best first: where climbing from the best of the pool leads, then the pool."""
        ordered = ranking.best_first(pool(self._encoding, good, rng))
        starts = list(itertools.islice(ordered, _CLIMBERS))
        ends = climbed(starts, ranking, lambda row: surroundings(self._encoding, row, rng), most_steps=_CLIMB_STEPS)
        given: list[Params] = []
        for candidate in itertools.chain(ends, starts, ordered):
            if candidate.params not in given:
                given.append(candidate.params)
                yield candidate


def _may_be_asked(ask: Ask, params: Params) -> bool:
    return params not in ask.pending and ask.keeps_rules(params) and ask.misfit(params) is None


def _share(candidate: Candidate | None, *, known: bool) -> float | None:
    return math.exp(candidate.worth) if candidate is not None and known else None


def _served(history: Sequence[Seen], expected: Outlook) -> Points:
    places = [place for place, trial in enumerate(history) if trial.value is not None]
    return expected.points[np.array(places, dtype=int)]


def _good(expected: Outlook, served: Points) -> FloatArray:
    """The settings with the best value among the probably feasible; else those most likely to be feasible."""
    if expected.value is None or not len(served):
        return served.rows
    mean, _ = expected.value.predict(served)
    order = np.argsort(-(mean + np.maximum(expected.log_feasible(served), _IMPOSSIBLE)), kind="stable")
    rows = served.rows[order]
    _, first = np.unique(rows, axis=0, return_index=True)
    return rows[np.sort(first)][:_GOOD_ROWS]
