"""How far a quantity's predictions can be trusted: by how well each trial is foretold from the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray

_PRIOR = 0.8
"""Trust in a model that only one trial has corrected."""
_PRIOR_TRIALS = 2.0
_TELLING = 0.5
"""Spread between trials, relative to their noise, below which they say nothing of the model."""


@dataclass(frozen=True, slots=True)
class Goodness:
    """How good predictions of one quantity are.

    Attributes:
        weight: From 0 (the mean of what was seen foretells as well) to 1 (nothing but noise is left over).
        rank_correlation: Spearman's, between what was seen of a trial and what the others foretell of it; NaN below
            four trials.
        residual_sd: Root mean square of the differences, in log units; NaN below two trials.
        trials: How many were compared.
    """

    weight: float
    rank_correlation: float
    residual_sd: float
    trials: int


def goodness_of(seen: FloatArray, noise_sd: FloatArray, foretold: FloatArray) -> Goodness:
    """Goodness of predictions that are right up to a constant.

    Args:
        seen: What trials showed, in log units, shape (n,).
        noise_sd: With what error.
        foretold: Of each trial by the others, up to a constant.
    """
    count = len(seen)
    difference = seen - foretold
    if count < 2:
        return Goodness(_PRIOR, float("nan"), float("nan"), count)
    # Without the trial itself in the mean that it is compared with.
    larger = (count / (count - 1.0)) ** 2
    left = larger * float(((difference - difference.mean()) ** 2).sum())
    spread = larger * float(((seen - seen.mean()) ** 2).sum())
    noise = float((noise_sd**2).sum())
    telling = spread - noise > _TELLING * noise
    skill = 1.0 - max(left - noise, 0.0) / (spread - noise) if telling else _PRIOR
    weight = (_PRIOR_TRIALS * _PRIOR + (count - 1.0) * max(skill, -1.0)) / (_PRIOR_TRIALS + count - 1.0)
    correlation = _spearman(seen, foretold) if count >= 4 else float("nan")
    if correlation <= 0.0:
        weight = 0.0
    return Goodness(min(max(weight, 0.0), 1.0), correlation, float(np.sqrt(left / larger / count)), count)


def _spearman(one: FloatArray, other: FloatArray) -> float:
    """Rank correlation; 0 where one of the two does not vary."""
    ranks = [np.unique(values, return_inverse=True)[1].astype(np.float64) for values in (one, other)]
    if min(float(rank.std()) for rank in ranks) == 0.0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
