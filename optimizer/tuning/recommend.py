"""Which measured setting to use: the best of those whose posterior keeps the limits, not the luckiest run.

A single run that came out just below a limit is over it in truth about every other time, and the best of many runs
owes part of its lead to luck. The posterior takes both back: it shrinks a run towards what the others say of settings
like it, by as much as its own noise deserves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.core.recommendation import CONFIDENCE, Recommendation
from optimizer.core.record import ParamValue, TrialRecord
from optimizer.core.trial import TrialRole, TrialState
from optimizer.search_spaces import SearchSpace
from optimizer.search_spaces.values import same_value
from optimizer.tuning.gp.encoding import BoolArray, Encoding, Points
from optimizer.tuning.gp.outlook import Outlook, outlook
from optimizer.tuning.gp.prior import PriorModel
from optimizer.tuning.gp.quantity import Quantity
from optimizer.tuning.strategy import Seen, seen

_TIE_SDS = 1.0
"""Two settings are a tie when their values differ by less than so many standard deviations of that difference."""
_MOST_TIED = 0.02
"""Of its value, what is given up at most for a simpler setting."""
_Z = 1.959963984540054
"""Of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A setting that may be recommended: at least one of its trials was feasible.

    Attributes:
        number: Of the first of those.
        params: As that set them.
        place: Of that in the history.
        runs: Trials that measured the setting.
    """

    number: int
    params: Mapping[str, ParamValue]
    place: int
    runs: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The contenders and their posteriors, each array of shape (contenders,).

    Attributes:
        contenders: In the order of their trials.
        points: The same as points.
        mean: Of the log objective, higher is better.
        sd: Of the same.
        probability: Of keeping all limits.
        chosen: Place of the one to recommend.
        sure: Whether that keeps the limits as probably as is asked for.
        simpler_than: Place of a better one that it ties with and is simpler than; None when it is the best itself.
    """

    contenders: tuple[Contender, ...]
    points: Points
    mean: FloatArray
    sd: FloatArray
    probability: FloatArray
    chosen: int
    sure: bool
    simpler_than: int | None


def recommend(
    trials: Sequence[TrialRecord], space: SearchSpace, *, prior: PriorModel | None = None
) -> Recommendation | None:
    """The measured setting whose posterior keeps all limits with 95 % and is best; None when no trial was feasible.

    Only a setting with a feasible trial is ever recommended. Repeats of a setting count together, near ties go to the
    setting with fewer parameters away from their default, and when none reaches 95 % it is the most probable one.

    Args:
        trials: Of one study. Repeats on held-out traffic are left out.
        space: What was searched.
        prior: A model of the engine for the means of the posteriors.
    """
    searched = [trial for trial in trials if trial.role is not TrialRole.CONFIRM]
    history = seen(searched)
    standing = standing_of(history, outlook(history, Encoding(space), prior=prior), space)
    if standing is None:
        return None
    place = standing.chosen
    contender = standing.contenders[place]
    maximise = next(trial.score.maximise for trial in searched if trial.score is not None)
    ends = [standing.mean[place] + z * standing.sd[place] for z in (-_Z, 0.0, _Z)]
    low, value, high = sorted(math.exp(end if maximise else -end) for end in ends)
    return Recommendation(
        number=contender.number,
        params=contender.params,
        probability=float(standing.probability[place]),
        value=value,
        low=low,
        high=high,
        runs=contender.runs,
        reason=_words(standing),
    )


def standing_of(history: Sequence[Seen], expected: Outlook, space: SearchSpace) -> Standing | None:
    """The contenders of a history and the one to recommend; None when no trial was feasible.

    Args:
        history: Ended trials.
        expected: What is learnt from them.
        space: What was searched.
    """
    contenders = _contenders(history, expected)
    if not contenders or expected.value is None:
        return None
    points = expected.points[np.array([contender.place for contender in contenders])]
    mean, sd = expected.value.predict(points)
    probability = np.exp(expected.log_feasible(points))
    sure = bool(np.any(probability >= CONFIDENCE))
    simpler_than = None
    if sure:
        best = int(np.argmax(np.where(probability >= CONFIDENCE, mean, -np.inf)))
        tied = np.asarray(probability >= CONFIDENCE) & _ties(expected.value, points, mean, best)
        away = np.array([changes(space, contender.params) for contender in contenders])
        chosen = min(np.flatnonzero(tied), key=lambda place: (away[place], -mean[place]))
        simpler_than = None if chosen == best or away[chosen] == away[best] else best
        chosen = best if simpler_than is None else int(chosen)
    else:
        chosen = int(max(range(len(contenders)), key=lambda place: (probability[place], mean[place])))
    return Standing(contenders, points, mean, sd, probability, chosen, sure, simpler_than)


def changes(space: SearchSpace, params: Mapping[str, ParamValue]) -> int:
    """How many parameters a setting has away from their default; one without a default counts when it is set."""
    return sum(
        parameter.default is None or not same_value(params[name], parameter.default)
        for name, parameter in space.parameters.items()
        if name in params
    )


def _ties(value: Quantity, points: Points, mean: FloatArray, best: int) -> BoolArray:
    """Which settings differ from the best by less than noise; shape (points,)."""
    covariance = value.covariance(points)
    variance = np.diag(covariance)
    difference_sd = np.sqrt(np.maximum(variance + variance[best] - 2.0 * covariance[best], 0.0))
    behind = mean[best] - mean
    tied: BoolArray = (behind <= _TIE_SDS * difference_sd) & (behind <= _MOST_TIED)
    return tied


def _contenders(history: Sequence[Seen], expected: Outlook) -> tuple[Contender, ...]:
    keys = expected.encoding.keys(expected.points.rows)
    found: dict[tuple[bytes, str], Contender] = {}
    runs: dict[tuple[bytes, str], int] = {}
    for place, (trial, row_key) in enumerate(zip(history, keys, strict=True)):
        key = (row_key, "" if trial.config is None else trial.config.fingerprint)
        runs[key] = runs.get(key, 0) + (trial.value is not None)
        if trial.state is TrialState.FEASIBLE and trial.value is not None:
            found.setdefault(key, Contender(trial.number, trial.params, place, 0))
    return tuple(
        Contender(contender.number, contender.params, contender.place, runs[key]) for key, contender in found.items()
    )


def _words(standing: Standing) -> str:
    place = standing.chosen
    contender = standing.contenders[place]
    percent = math.floor(100.0 * standing.probability[place])
    count = len(standing.contenders)
    among = "the only setting that was measured feasible" if count == 1 else f"of {count} settings measured feasible"
    if not standing.sure:
        what = (
            among if count == 1 else f"{among} none keeps all limits with {CONFIDENCE:.0%} probability; this is nearest"
        )
        return f"{what}: {percent} %, so it should be measured again"
    runs = "one run" if contender.runs == 1 else f"{contender.runs} runs"
    what = among if count == 1 else f"the best {among}"
    if standing.simpler_than is not None:
        better = standing.contenders[standing.simpler_than].number
        what = f"within noise of trial {better}, with fewer parameters away from their default"
    return f"{what}; it keeps all limits with {percent} % probability ({runs})"
