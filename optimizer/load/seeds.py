"""Independent random streams below one seed."""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """What is drawn; the values are part of the record and never change."""

    WINDOW = 0
    RAMP = 1
    WARM_UP = 2
    PREFIX = 3
    ROWS = 4
    SESSION = 5
    STAND_IN = 6
    ARRIVALS = 7
    RAMP_ARRIVALS = 8


def generator(seed: int, stream: Stream, *numbers: int) -> np.random.Generator:
    """The generator of one thing: the same seed, stream and numbers always give the same draws.

    Args:
        seed: >= 0.
        stream: What is drawn.
        numbers: Which one of them, such as the number of a request and of its turn.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(stream), *numbers)))
