"""Settings as rows of codes, and rows of codes as features of a kernel.

A row has a code for every parameter of the space, whether it exists beside the others or not; the features of one that
does not are those of a value of its own, so that all settings without it look alike in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from optimizer.core.engine_config import EngineConfig
from optimizer.core.measurement import FloatArray
from optimizer.core.record import ParamValue
from optimizer.search_spaces import SearchSpace
from optimizer.search_spaces.conditions import depth_first
from optimizer.search_spaces.parameter_base import Unread
from optimizer.tuning.gp.axis import Axis
from optimizer.tuning.strategy import Params

BoolArray: TypeAlias = npt.NDArray[np.bool_]

_SAME_CODE = 1e-9
_CENTRE = 0.5
"""Place of an ordered parameter that has no value."""


@dataclass(frozen=True, slots=True)
class Points:
    """Settings in both forms.

    Attributes:
        rows: Codes, shape (points, parameters).
        features: Shape (points, columns).
    """

    rows: FloatArray
    features: FloatArray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: npt.NDArray[np.int_]) -> Points:
        return Points(self.rows[places], self.features[places])


class Encoding:
    """Between the settings of a space and numbers.

    Args:
        space: The parameters and their conditions.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.axes = tuple(Axis(name, parameter) for name, parameter in space.parameters.items())
        self._place = {axis.name: index for index, axis in enumerate(self.axes)}
        self._values: dict[tuple[int, float], ParamValue] = {}
        self._conditions = tuple(
            tuple(
                (self._place[other], self.axes[self._place[other]].code(value))
                for other, value in axis.parameter.when.items()
            )
            for axis in self.axes
        )
        self._dependent = tuple(
            self._place[name] for name in depth_first(space.parameters) if space.parameters[name].when
        )
        self._ordered = np.array([axis.is_ordered for axis in self.axes])
        self._reach = np.array([axis.reach for axis in self.axes])
        widths = [2 if axis.is_ordered else len(axis.values) + 1 for axis in self.axes]
        starts = np.cumsum([0, *widths])
        self._starts = starts[:-1]
        self.groups = tuple(slice(int(start), int(end)) for start, end in itertools.pairwise(starts))
        """The columns of each parameter among the features."""

    def row(self, params: Mapping[str, ParamValue], config: EngineConfig | None = None) -> FloatArray:
        """The codes of a setting, shape (parameters,).

        A parameter that it does not set counts as what the configuration sets, else as its default. NaN where neither
        says anything that the parameter ranges over.
        """
        codes = np.full(len(self.axes), math.nan)
        for index, axis in enumerate(self.axes):
            value = params.get(axis.name)
            if value is None:
                value = self._unsaid(axis, config)
            if value is not None:
                codes[index] = axis.code(value)
        return codes

    def rows(self, settings: Sequence[Mapping[str, ParamValue]]) -> FloatArray:
        """Shape (settings, parameters)."""
        return np.array([self.row(params) for params in settings]).reshape(len(settings), len(self.axes))

    def params(self, row: FloatArray) -> Params:
        """The setting of a row: the parameters that exist in it and have a value."""
        there = self.active(row[None, :])[0] & ~np.isnan(row)
        return {self.axes[index].name: self._value(int(index), float(row[index])) for index in np.flatnonzero(there)}

    def active(self, rows: FloatArray) -> BoolArray:
        """Which parameters exist in each row; shape as `rows`."""
        there = np.ones(rows.shape, dtype=bool)
        for index in self._dependent:
            for other, code in self._conditions[index]:
                there[:, index] &= (np.abs(rows[:, other] - code) < _SAME_CODE) & there[:, other]
        return there

    def features(self, rows: FloatArray) -> FloatArray:
        """Shape (rows, columns); `groups` tells which columns are whose.

        An ordered parameter has its place from 0 to 1, and whether it has one; another has a column for each choice and
        one for none. Squared distance is 1 from one choice to another, and at least 1 from any value to none.
        """
        there = self.active(rows) & ~np.isnan(rows)
        out = np.zeros((len(rows), self.groups[-1].stop))
        ordered = self._starts[self._ordered]
        out[:, ordered] = np.where(there, rows / self._reach, _CENTRE)[:, self._ordered]
        out[:, ordered + 1] = ~there[:, self._ordered]
        for index in np.flatnonzero(~self._ordered):
            none = len(self.axes[index].values)
            column = np.where(there[:, index], rows[:, index], none).astype(int)
            out[np.arange(len(rows)), self._starts[index] + column] = math.sqrt(0.5)
        return out

    def points(self, rows: FloatArray) -> Points:
        """Rows with their features."""
        return Points(rows, self.features(rows))

    def keys(self, rows: FloatArray) -> list[bytes]:
        """Equal for rows that are the same setting."""
        there = self.active(rows) & ~np.isnan(rows)
        return [key.tobytes() for key in np.where(there, np.round(rows, 9) + 0.0, -1.0)]

    def drawn(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Random rows, shape (count, parameters)."""
        return np.stack([axis.drawn(rng, count) for axis in self.axes], axis=1)

    def filled(self, row: FloatArray, rng: np.random.Generator) -> FloatArray:
        """The row with a random code where it has none, so that every parameter could come into being."""
        return np.where(np.isnan(row), self.drawn(rng, 1)[0], row)

    def changed(self, row: FloatArray) -> FloatArray:
        """Every row that differs from a full one in one parameter that exists in it; shape (neighbours, parameters)."""
        there = self.active(row[None, :])[0]
        rows = []
        for index in np.flatnonzero(there):
            codes = self.axes[index].neighbours(float(row[index]))
            block = np.repeat(row[None, :], codes.size, axis=0)
            block[:, index] = codes
            rows.append(block)
        return np.vstack(rows) if rows else np.empty((0, row.size))

    def _value(self, index: int, code: float) -> ParamValue:
        """Looked up, since the same few codes come again and again."""
        if (index, code) not in self._values:
            self._values[index, code] = self.axes[index].value(code)
        return self._values[index, code]

    def _unsaid(self, axis: Axis, config: EngineConfig | None) -> ParamValue | None:
        default = axis.parameter.default
        if config is None:
            return default
        read = axis.parameter.read(axis.name, config.flags, device_memory_bytes=None)
        if read is Unread.ABSENT:
            return default
        return None if isinstance(read, Unread) else read
