"""Settings among which the best is looked for: the surroundings of those that did best, and a few from everywhere.

In a dozen dimensions a model of some twenty points knows little far from them, and what is not known looks promising.
So most candidates are a handful of changes away from a setting that did well: with many random ones, a search that has
no feasible setting yet strolls along the corners of the space.
"""

from __future__ import annotations

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.encoding import Encoding

RANDOM_ROWS = 40
PAIRS = 120
TRIPLES = 80


def pool(encoding: Encoding, good: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Rows of codes, none of them checked against the rules; shape (many, parameters).

    Args:
        encoding: Of the space.
        good: Rows of settings that did well, shape (k, parameters).
        rng: Draws.
    """
    blocks = [encoding.drawn(rng, RANDOM_ROWS)]
    for row in good:
        full = encoding.filled(row, rng)
        near = surroundings(encoding, full, rng)
        blocks.append(near)
        blocks.append(_changes(near, full, 2, PAIRS, rng))
        blocks.append(_changes(near, full, 3, TRIPLES, rng))
    return np.vstack(blocks)


def surroundings(encoding: Encoding, row: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Every row that differs in one parameter; what a change brings into being is drawn at random."""
    near = encoding.changed(row)
    hidden = ~encoding.active(row[None, :])[0]
    if np.any(hidden) and len(near):
        near[:, hidden] = encoding.drawn(rng, len(near))[:, hidden]
    return near


def _changes(near: FloatArray, row: FloatArray, changes: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Several single changes at once; where two touch one parameter, the later holds."""
    if len(near) < 2:
        return near[:0]
    rows = np.repeat(row[None, :], count, axis=0)
    for _ in range(changes):
        one = near[rng.integers(len(near), size=count)]
        rows = np.where(one != row, one, rows)
    return rows
