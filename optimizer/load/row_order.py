"""Which row of a file each request takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.load.datasets import DatasetIndex
from optimizer.load.seeds import Stream, generator

_HELD_SHARE = 10
_FEWEST_TO_HOLD = 10


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """A row, and what sets its request's prefix cache apart from that of other passes over the file; may be empty."""

    number: int
    apart: str


class RowOrder:
    """Deals the rows out, in an order that is the study seed's, or as recorded.

    A tenth of the rows is kept for warm-up and ramp, so that what these leave in the prefix cache is no row of the
    window. A file of fewer than ten rows has none to spare. When a pass over the file is through, the next begins; its
    requests are kept apart from those of the passes before, which would else answer them from the cache.

    Args:
        index: The file.
        study_seed: >= 0; the same for all runs that are compared.
        recorded: Whether the window takes all rows in the order of the file.
    """

    def __init__(self, index: DatasetIndex, study_seed: int, *, recorded: bool) -> None:
        rows = len(index)
        mixed = generator(study_seed, Stream.ROWS).permutation(rows)
        held = rows // _HELD_SHARE if rows >= _FEWEST_TO_HOLD and not recorded else 0
        self._window = np.arange(rows) if recorded else mixed[: rows - held]
        self._held = mixed[rows - held :] if held else mixed
        self._holds = held > 0

    def choose(self, stream: Stream, number: int) -> ChosenRow:
        """The row of request `number` of the window, the ramp or the warm-up."""
        if stream is Stream.WINDOW:
            turn, place = divmod(number, len(self._window))
            return ChosenRow(int(self._window[place]), f"-{turn}" if turn else "")
        turn, place = divmod(number, len(self._held))
        row = self._held[place if stream is Stream.WARM_UP else -1 - place]
        return ChosenRow(int(row), f"-{stream.name.lower()}-{turn}" if turn or not self._holds else "")
