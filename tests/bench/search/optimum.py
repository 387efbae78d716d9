"""The best setting of a situation, by many random settings and local search without noise, kept on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, Parameter
from tests.bench.search.drawing import existing, random_full, snapped
from tests.bench.search.situation import Situation, rng_of

CACHE = Path("build/bench_search")
DRAWS = 4000
STARTS = 8
"""Local searches, from the best of the draws that lie apart."""
FINISHED = 2
"""Of them, so many are gone on with by changes of two parameters at once."""
_BETTER = 1.0003
"""A step is taken only if it is worth it: what is left is far below what a regret is rounded to."""
_STEPS = (0.5, 0.2, 0.08, 0.03, 0.01)
"""Moves along a range, as shares of it, coarse ones first; then its next values."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best that was found, and what random settings are like.

    Attributes:
        params: The setting.
        value: Its objective, larger is better (1 / metric where it is minimised).
        crashing: Share of random settings that crash.
        feasible: Share of random settings that keep every limit.
        median: Median regret of the random settings that are feasible.
    """

    params: Mapping[str, ParamValue]
    value: float
    crashing: float
    feasible: float
    median: float


def optimum_of(situation: Situation, digest: str, cache: Path = CACHE) -> Optimum:
    """From the cache, or found now; another digest of the equations has another optimum."""
    path = cache / f"{situation.name}-{situation.seed}-{digest}.json"
    if path.exists():
        return Optimum(**json.loads(path.read_text(encoding="utf-8")))
    found = find(situation)
    cache.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: getattr(found, name) for name in Optimum.__slots__})
    partial = path.with_suffix(f".{id(found)}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return found


def find(situation: Situation, *, draws: int = DRAWS, starts: int = STARTS) -> Optimum:
    """Random settings, then local search from the best of them."""
    rng = rng_of("optimum", situation.key)
    drawn = [random_full(situation.space, rng) for _ in range(draws)]
    assessed = [(values, situation.assessed(existing(situation.space, values))) for values in drawn]
    full = [values for values, truth in assessed if truth is not None]
    truths = [truth for _, truth in assessed if truth is not None]
    worths = np.array([situation.worth(truth) for truth in truths])
    feasible = np.isfinite(worths)
    best_first = np.argsort(-worths, kind="stable")
    climbs = [
        _climb(situation, full[index], float(worths[index]))
        for index in _apart(full, best_first[: 20 * starts], starts)
    ]
    # Along a limit two parameters must move at once: worth its time for the foremost alone.
    foremost = sorted(climbs, key=lambda climb: -climb[1])[:FINISHED]
    params, value = max((_climb(situation, *climb, pairs=True) for climb in foremost), key=lambda climb: climb[1])
    return Optimum(
        params=existing(situation.space, params),
        value=value,
        crashing=sum(truth.crash is not None for truth in truths) / len(truths),
        feasible=float(feasible.mean()),
        median=float(1.0 - np.median(worths[feasible]) / value) if feasible.any() else math.nan,
    )


def _apart(full: list[dict[str, ParamValue]], order: np.ndarray, count: int) -> list[int]:
    """The first of the order, and on, each with another set of choices than those before it while there are such."""
    kept: dict[tuple[ParamValue, ...], int] = {}
    for index in order:
        choices = tuple(value for value in full[index].values() if isinstance(value, bool | str))
        kept.setdefault(choices, int(index))
    return (list(kept.values()) + [int(index) for index in order if index not in kept.values()])[:count]


def _climb(
    situation: Situation, full: Mapping[str, ParamValue], worth: float, *, pairs: bool = False
) -> tuple[dict[str, ParamValue], float]:
    """One change after another that is for the better; with `pairs` two at a time once no single one is."""
    here, best = dict(full), worth
    improved = True
    while improved:
        improved = False
        for moves in (_single, _pairs) if pairs else (_single,):
            for change in moves(situation, here):
                there = {**here, **change}
                truth = situation.assessed(existing(situation.space, there))
                worth = -math.inf if truth is None else situation.worth(truth)
                if worth > best * _BETTER or (best == -math.inf and worth > best):
                    here, best, improved = there, worth, True
            if improved:
                break
    return here, best


def _single(situation: Situation, here: Mapping[str, ParamValue]) -> Iterator[dict[str, ParamValue]]:
    active = situation.space.active(here)
    for name, parameter in situation.space.parameters.items():
        if name in active:
            yield from ({name: value} for value in _moves(parameter, here[name], _STEPS))


def _pairs(situation: Situation, here: Mapping[str, ParamValue]) -> Iterator[dict[str, ParamValue]]:
    """Two at once, by small steps: along a limit both must move."""
    active = situation.space.active(here)
    parameters = situation.space.parameters
    moves = {name: list(_moves(parameters[name], here[name], (0.05, 0.01))) for name in active}
    for index, one in enumerate(active):
        for other in active[index + 1 :]:
            yield from ({one: a, other: b} for a in moves[one] for b in moves[other])
    for name in active:
        if isinstance(parameters[name], ChoiceParameter):
            for value in _moves(parameters[name], here[name], ()):
                yield from ({name: value, other: b} for other in situation.space.active({**here, name: value})
                            if other not in active for b in _moves(parameters[other], here[other], (0.3,)))  # fmt: skip


def _moves(parameter: Parameter, value: ParamValue, steps: tuple[float, ...]) -> list[ParamValue]:
    if isinstance(parameter, BoolParameter):
        return [not value]
    if isinstance(parameter, ChoiceParameter):
        return [other for other in parameter.values if other != value]
    number = float(value)
    moved: list[float] = []
    for step in steps:
        for sign in (-1.0, 1.0):
            if parameter.log:
                moved.append(number * (parameter.high / parameter.low) ** (sign * step))
            else:
                moved.append(number + sign * step * (parameter.high - parameter.low))
    least = 1.0 if parameter.kind == "int" else parameter.step or 0.003 * (parameter.high - parameter.low)
    moved += [number - least, number + least]
    values = dict.fromkeys(snapped(parameter, at) for at in moved)
    values.pop(snapped(parameter, number), None)
    return list(values)
