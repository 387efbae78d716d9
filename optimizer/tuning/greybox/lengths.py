"""How long the requests of a workload are: representative samples, the same at every call."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.load.lengths import (
    FixedLength,
    LengthDistribution,
    LognormalLength,
    MixtureLength,
    UniformLength,
)
from optimizer.load.workload import Workload

_POINTS = 2000
"""Quantiles that stand for a distribution: the P99 is then exact to a twentieth of a percent of the requests."""
_PAIRING_SEED = 0


def request_lengths(workload: Workload) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens of requests: whole prompts, answers, and what a prompt repeats of earlier turns; shape (n,) each.

    Drawn lengths are taken as independent of each other; a file's stay paired. Of a conversation the turns are taken
    as equally common.

    Raises:
        InputError: The workload's file cannot be read or is wrong.
    """
    shared = 0 if workload.shared_prefix is None else workload.shared_prefix.tokens
    index = workload.dataset
    rng = np.random.default_rng(_PAIRING_SEED)
    if index is not None:
        prompts, answers = index.prompt_tokens.astype(np.float64), index.output_tokens.astype(np.float64)
    else:
        prompts = rng.permutation(_points(workload.prompt_tokens))
        answers = _points(workload.output_tokens)
    if index is not None and workload.output_tokens is not None:
        answers = rng.choice(_points(workload.output_tokens), prompts.size)
    repeated = _repeated_turns(workload, rng, prompts.size) * (prompts.mean() + answers.mean())
    return prompts + repeated + shared, np.maximum(answers, 1.0), repeated


def _repeated_turns(workload: Workload, rng: np.random.Generator, count: int) -> FloatArray:
    """Earlier turns that each of `count` requests repeats."""
    if workload.sessions is None:
        return np.zeros(count)
    turns = max(1, round(float(_points(workload.sessions.turns).mean())))
    kept = [workload.sessions.kept(turn) for turn in range(turns)]
    return rng.permutation(np.resize(np.array(kept, dtype=np.float64), count))


def _points(lengths: LengthDistribution | None) -> FloatArray:
    """Lengths at evenly spaced ranks, rising, shape (2000,)."""
    ranks = (np.arange(_POINTS) + 0.5) / _POINTS
    match lengths:
        case None:
            return np.zeros(_POINTS)
        case FixedLength():
            return np.full(_POINTS, float(lengths.tokens))
        case UniformLength():
            return np.floor(lengths.low + ranks * (lengths.high - lengths.low + 1))
        case LognormalLength():
            normal = NormalDist(math.log(lengths.median), lengths.sigma)
            drawn = np.round(np.exp([normal.inv_cdf(rank) for rank in ranks]))
            clipped: FloatArray = np.clip(drawn, lengths.low, lengths.high)
            return clipped
        case MixtureLength():
            parts = sorted(lengths.parts, key=lambda part: part.tokens)
            weights = np.cumsum([part.weight for part in parts])
            places = np.searchsorted(weights / weights[-1], ranks)
            return np.array([float(parts[place].tokens) for place in np.minimum(places, len(parts) - 1)])
