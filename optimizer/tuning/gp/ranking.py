"""Candidates in the order of their worth, of which only those are checked that come to the top.

Whether a setting keeps the rules, fits into memory and has a serving engine costs far more to tell than its worth.
Each of these can only lower it, so a queue ordered by the worth before the check need not check the rest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.acquisition import CRASH_WEIGHT, Acquisition
from optimizer.tuning.gp.encoding import Encoding, Points
from optimizer.tuning.strategy import Ask, Params

_MOST_MISFITS = 256
"""So many settings that cannot start are passed over; the next ones are proposed, and rejected by who asked."""


_CHUNK = 6
_HOPELESS = 1e9
_LEAST_STEP = 1e-2
_MOST_CHECKED = 12
"""Neighbours that are checked for one step of a climb: the most promising."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that keeps the rules, with the log of its worth."""

    worth: float
    row: FloatArray
    params: Params


@dataclass(slots=True)
class Ranking:
    """Orders candidates of one ask.

    Attributes:
        ask: What is asked, and the checks.
        encoding: From rows to settings.
        acquisition: Worth before the checks.
        taken: Keys of settings that were tried already or are pending; they are left out.
    """

    ask: Ask
    encoding: Encoding
    acquisition: Acquisition
    taken: frozenset[bytes]
    _may_start: dict[bytes, bool] = field(default_factory=dict)
    _misfits: int = 0

    def best_first(self, rows: FloatArray) -> Iterator[Candidate]:
        """Distinct candidates, the best first."""
        points = self.encoding.points(rows)
        return self._ordered(points, self.acquisition(points))

    def best_of_each(self, blocks: Sequence[FloatArray], floors: Sequence[float]) -> list[Candidate | None]:
        """The best of the most promising of each block of rows, None where none is worth more than the floor."""
        points = self.encoding.points(np.vstack(blocks))
        bounds = self.acquisition(points)
        ends = np.cumsum([0, *(len(block) for block in blocks)])
        return [
            next(self._ordered(points[np.arange(start, end)], bounds[start:end], floor, _MOST_CHECKED), None)
            for (start, end), floor in zip(itertools.pairwise(ends), floors, strict=True)
        ]

    def _ordered(
        self, points: Points, bounds: FloatArray, floor: float = -math.inf, most: int | None = None
    ) -> Iterator[Candidate]:
        """Those worth more than the floor, the best first."""
        bounds = np.where(np.isfinite(bounds), bounds, -_HOPELESS)
        order = np.argsort(-bounds, kind="stable")
        order = order[bounds[order] > floor][:most]
        checked: list[tuple[float, int, Candidate]] = []
        seen = set(self.taken)
        for start in range(0, len(order), _CHUNK):
            chunk = order[start : start + _CHUNK]
            for place, candidate in self._checked(points, bounds, chunk, seen):
                heapq.heappush(checked, (-candidate.worth, place, candidate))
            end = start + _CHUNK
            bound = bounds[order[end]] if end < len(order) else -math.inf
            while checked and -checked[0][0] >= bound:
                candidate = heapq.heappop(checked)[-1]
                if candidate.worth <= floor:
                    return
                yield candidate

    def _checked(
        self, points: Points, bounds: FloatArray, chunk: npt.NDArray[np.int_], seen: set[bytes]
    ) -> list[tuple[int, Candidate]]:
        """Those of a chunk that keep the rules and may start, each setting once."""
        keep: list[tuple[int, Params]] = []
        for place, key in zip(chunk, self.encoding.keys(points.rows[chunk]), strict=True):
            if key in seen:
                continue
            seen.add(key)
            if self._may_start.get(key) is False:
                continue
            params = self.encoding.params(points.rows[place])
            if key not in self._may_start:
                self._may_start[key] = self._passes(params)
            if self._may_start[key]:
                keep.append((int(place), params))
        survival = self.acquisition.outlook.survival
        chances = np.zeros(len(keep))
        if survival.is_slow and keep:
            chances = survival.log_chance(points[np.array([place for place, _ in keep])])
        return [
            (place, Candidate(float(bounds[place] + CRASH_WEIGHT * chance), points.rows[place], params))
            for (place, params), chance in zip(keep, chances, strict=True)
        ]

    def _passes(self, params: Params) -> bool:
        if not self.ask.keeps_rules(params):
            return False
        if self._misfits >= _MOST_MISFITS or self.ask.misfit(params) is None:
            return True
        self._misfits += 1
        return False


def climbed(
    starts: Sequence[Candidate], ranking: Ranking, around: Callable[[FloatArray], FloatArray], *, most_steps: int
) -> list[Candidate]:
    """Where one-parameter changes lead, each the best there is, until none improves; the best end first.

    Args:
        starts: Where to begin.
        ranking: Orders the neighbours.
        around: Neighbouring rows of a row.
        most_steps: Steps at most.
    """
    ends: list[Candidate] = []
    heres = list(starts)
    for _ in range(most_steps):
        if not heres:
            break
        floors = [here.worth + _LEAST_STEP for here in heres]
        theres = ranking.best_of_each([around(here.row) for here in heres], floors)
        ends += [here for here, there in zip(heres, theres, strict=True) if there is None]
        heres = [there for there in theres if there is not None]
    return sorted([*ends, *heres], key=lambda candidate: -candidate.worth)
