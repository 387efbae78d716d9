"""Evidence for or against a share of requests over a level, when those requests may come in runs.

The model: a request is over the level with probability `enter` when idle and `stay` when active (see `runs`). Each is a
nuisance; what counts is the share of requests over the level that they imply. Evidence is a likelihood ratio: the mean
likelihood of a fixed set of alternatives over the *largest* likelihood of any model whose share lies on the other side
of what is allowed (universal inference: Wasserman, Ramdas and Balakrishnan, PNAS 2020). Under every such model its
expectation is at most 1 at any look, and the chance that it ever reaches 1 / level is at most the level (Ville).
Nothing is estimated and then taken as known: a correlation that the data cannot rule out stays in the denominator.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from optimizer.core.measurement import FloatArray, IntArray
from optimizer.objectives.sequential.runs import BoolArray, OverSequence

_RUN_LENGTHS = np.geomspace(1.0, 4096.0, 48)
"""Mean run lengths of the denominator, as multiples of what independent requests have."""
_ALTERNATIVE_RUN_LENGTHS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_TINY = 1e-12


class Side(enum.Enum):
    """What the evidence is for: a share below what is allowed, or one above it."""

    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class _Design:
    """Constants of one side.

    Attributes:
        odds_ratios: Odds of the alternatives' shares, relative to the allowed one.
        weights: Of these alternatives.
        independent_weight: Weight of alternatives without correlation; the rest is spread over run lengths.
        windows: Memories of the models; the least of their evidence counts.
        any_weight: Weight, beside all of these, of alternatives of every share.
        memory_discount: Nats given back for windows above 1.
    """

    odds_ratios: tuple[float, ...]
    weights: tuple[float, ...]
    independent_weight: float
    windows: tuple[int, ...]
    any_weight: float
    memory_discount: float


# Tuned on simulated requests (tests/bench/verdict_simulation.py). Below the allowed share there is little room, so the
# alternatives lie close together; above it there is much, which pays for seven memories.
_DESIGNS = {
    Side.BELOW: _Design((0.1, 0.35, 0.55, 0.7), (1.0, 1.0, 2.0, 1.0), 0.9, (1, 4, 16), 0.0, 2.0),
    Side.ABOVE: _Design(
        (1.2, 1.5, 2.0, 3.0, 6.0, 20.0, 100.0, 1000.0), (1.0,) * 8, 0.5, (1, 2, 4, 8, 16, 32, 64), 0.2, 0.0
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class _Models:
    """One window's alternatives, and the edge of its null models, as log probabilities of the four transitions.

    Attributes:
        alternatives: Shape (4, alternatives).
        log_weights: Shape (alternatives,).
        run_lengths: Of the null models, shape (k,).
        stay: Probability of another one over the level while active, shape (k,).
        log_stay: Logs of that probability and of its complement, shape (2, k).
        enter: Probability, while idle, at which the share is exactly the allowed one, shape (k,).
    """

    alternatives: FloatArray
    log_weights: FloatArray
    run_lengths: FloatArray
    stay: FloatArray
    log_stay: FloatArray
    enter: FloatArray


def log_evidence(
    over: BoolArray, allowed: float, side: Side, looks: IntArray, *, longest_run: FloatArray, without_stretch: int = 0
) -> FloatArray:
    """Log of the evidence after each of several numbers of requests, in nats.

    Args:
        over: Which requests were over the level, in order of schedule, shape (n,).
        allowed: Largest share that may be, between 0 and 1.
        side: BELOW for evidence that the share is less than `allowed`, ABOVE for more.
        looks: Numbers of requests, each within 1..n, shape (looks,).
        longest_run: Mean length of runs to reckon with while none so long was seen, >= 1, shape (looks,).
        without_stretch: Evidence that must hold without the worst stretch of so many requests.

    Returns:
        Shape (looks,).
    """
    design, sequence = _DESIGNS[side], OverSequence(over)
    least, independent = np.full(looks.size, np.inf), None
    for window in design.windows:
        if window > 1 and window * allowed > 1.0:
            break  # a memory that long would call every request active
        if without_stretch:
            counts = sequence.transitions_without(without_stretch, window, looks)
        else:
            counts = sequence.transitions(window, looks)
        if independent is None:
            independent = _best_independent(counts, allowed, side)
        # Without this bound, no requests over the level could always mean one immense run still to come.
        bound = np.maximum(longest_run, 2.0 * sequence.largest_run(window, looks))
        models = _models(allowed, side, window)
        denominator = np.maximum(_best_correlated(counts, bound, models, side), independent)
        evidence = _mean_alternative(counts, models, design.any_weight) - denominator
        if window > 1:
            evidence = np.where(_is_always_active(counts, looks, allowed), np.inf, evidence + design.memory_discount)
        least = np.minimum(least, evidence)
    return least


def _is_always_active(counts: FloatArray, looks: IntArray, allowed: float) -> npt.NDArray[np.bool_]:
    """Whether nearly all of many requests are active, so that this memory tells nothing of runs; shape (looks,).

    Where every tenth request is over the level, a memory of 16 sees one run, which always was there.
    """
    is_always: npt.NDArray[np.bool_] = (looks * allowed >= 2.5) & (
        counts[:, :2].sum(axis=1) > 0.95 * counts.sum(axis=1)
    )
    return is_always


def _mean_alternative(counts: FloatArray, models: _Models, any_weight: float) -> FloatArray:
    """Log of the alternatives' weighted mean likelihood, shape (looks,)."""
    terms = counts @ models.alternatives + models.log_weights
    if any_weight:
        terms = np.column_stack([terms + math.log1p(-any_weight), _any_share(counts) + math.log(any_weight / 2.0)])
    top = terms.max(axis=1)
    mean: FloatArray = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
    return mean


def _any_share(counts: FloatArray) -> FloatArray:
    """Log likelihoods averaged over all shares, of independent requests and of runs, shape (looks, 2).

    The average is over Jeffreys' prior (Krichevsky and Trofimov, IEEE Transactions on Information Theory 1981).
    """
    from scipy.special import betaln  # takes a while to load, and only a measurement needs it

    def averaged(hits: FloatArray, misses: FloatArray) -> FloatArray:
        mean: FloatArray = betaln(hits + 0.5, misses + 0.5) - math.log(math.pi)
        return mean

    stayed, left, entered, idle = counts.T
    return np.stack([averaged(stayed + entered, left + idle), averaged(stayed, left) + averaged(entered, idle)], axis=1)


def _best_independent(transitions: FloatArray, allowed: float, side: Side) -> FloatArray:
    """Largest log likelihood of independent requests whose share is not on `side`, shape (looks,)."""
    over, under = transitions[:, [0, 2]].sum(axis=1), transitions[:, [1, 3]].sum(axis=1)
    share = over / np.maximum(over + under, 1.0)
    low, high = (allowed, 1.0 - _TINY) if side is Side.BELOW else (_TINY, allowed)
    share = np.clip(share, low, high)
    best: FloatArray = over * np.log(share) + under * np.log1p(-share)
    return best


def _best_correlated(counts: FloatArray, bound: FloatArray, models: _Models, side: Side) -> FloatArray:
    """Largest log likelihood of runs, up to a mean length, whose share is not on `side`; shape (looks,).

    For a given `stay` the likelihood is concave in `enter`, so the best one is the observed frequency or the edge.
    """
    entered, idle = counts[:, 2:3], counts[:, 3:4]
    observed = entered / np.maximum(entered + idle, 1.0)
    if side is Side.BELOW:
        enter = np.minimum(np.maximum(observed, models.enter), np.maximum(models.stay, models.enter))
    else:
        enter = np.clip(observed, _TINY, models.enter)
    likelihood = counts[:, :2] @ models.log_stay + entered * np.log(enter) + idle * np.log1p(-enter)
    best: FloatArray = np.where(models.run_lengths <= bound[:, None], likelihood, -np.inf).max(axis=1)
    return best


@lru_cache(maxsize=64)
def _models(allowed: float, side: Side, window: int) -> _Models:
    design = _DESIGNS[side]
    odds = allowed / (1.0 - allowed) * np.array(design.odds_ratios)
    shares = odds / (1.0 + odds)
    weights = np.array(design.weights) / sum(design.weights)
    stay, enter, weight = list(shares), list(shares), list(weights * design.independent_weight)
    for share, share_weight in zip(shares, weights, strict=True):
        for run_length in _ALTERNATIVE_RUN_LENGTHS:
            high, low = _stay_and_enter(float(share), np.array(run_length), window)
            stay.append(float(high))
            enter.append(float(low))
            weight.append(share_weight * (1.0 - design.independent_weight) / len(_ALTERNATIVE_RUN_LENGTHS))
    null_stay, null_enter = np.clip(_stay_and_enter(allowed, _RUN_LENGTHS, window), _TINY, 1.0 - _TINY)
    high_, low_ = np.clip(stay, _TINY, 1.0 - _TINY), np.clip(enter, _TINY, 1.0 - _TINY)
    return _Models(
        alternatives=np.stack([np.log(high_), np.log1p(-high_), np.log(low_), np.log1p(-low_)]),
        log_weights=np.log(weight),
        run_lengths=_RUN_LENGTHS,
        stay=null_stay,
        log_stay=np.stack([np.log(null_stay), np.log1p(-null_stay)]),
        enter=null_enter,
    )


def _stay_and_enter(share: float, run_length: FloatArray, window: int) -> tuple[FloatArray, FloatArray]:
    """Probabilities of a request over the level, while active and while idle.

    The mean distance between two requests over the level is (1 - q) / stay + q / enter, where q = (1 - stay)^window is
    the chance that a run ends; it must be 1 / share.

    Args:
        share: Of requests over the level.
        run_length: Mean number of them in a run, as a multiple of what independent requests have.
        window: Memory of the model.
    """
    ends = np.exp(window * np.log1p(-share)) / run_length
    stay = 1.0 - ends ** (1.0 / window)
    enter = ends / (1.0 / share - (1.0 - ends) / stay)
    return stay, enter
