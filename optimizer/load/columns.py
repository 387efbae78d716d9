"""Arrays that grow at the end, so that a view of what is there costs nothing."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

N = TypeVar("N", np.float64, np.int64)


class Growing(Generic[N]):
    """Rows of one type; room doubles when it is used up.

    Args:
        dtype: Type of the elements.
        columns: Elements of a row; 1 makes flat arrays.
    """

    def __init__(self, dtype: type[N], columns: int = 1) -> None:
        self._rows: npt.NDArray[N] = np.zeros((64, columns) if columns > 1 else 64, dtype=dtype)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def values(self) -> npt.NDArray[N]:
        """The rows so far. A view: rows that are written again later change in it, but none is added."""
        return self._rows[: self._used]

    def extend(self, rows: npt.NDArray[N]) -> None:
        """Adds rows at the end."""
        self.reserve(self._used + len(rows))
        self._rows[self._used : self._used + len(rows)] = rows
        self._used += len(rows)

    def grow_to(self, rows: int) -> None:
        """Adds rows of zeros until there are so many."""
        self.reserve(rows)
        self._used = max(self._used, rows)

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows in all."""
        if rows > len(self._rows):
            larger = np.zeros((max(rows, 2 * len(self._rows)), *self._rows.shape[1:]), dtype=self._rows.dtype)
            larger[: self._used] = self.values
            self._rows = larger
