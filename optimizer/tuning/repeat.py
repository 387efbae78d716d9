"""When a setting is measured again instead of a new one.

The best of many runs owes part of its lead to luck, and one that lies just under a limit may lie over it. A second run
tells; it costs a trial, so it is asked for only where it may change what is recommended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.outlook import Outlook
from optimizer.tuning.recommend import Standing
from optimizer.tuning.strategy import Params, Seen

REPEAT_EVERY = 5
"""Of so many trials in a row at most one measures a new best again for no more than its being new."""
_HOPEFUL = 0.5
"""A setting that keeps the limits less probably than this is not worth a second run."""
_MOST_RUNS = 4
_LEAST_GAIN = 0.003
"""Share of the objective below which a gain is not worth a run."""
_BELOW_ALL = 0.1
"""While no setting is sure to keep the limits, to know of any that it does counts for this much and its lead."""


def to_repeat(history: Sequence[Seen], expected: Outlook, standing: Standing | None, hoped: float) -> Params | None:
    """The setting to measure again; None when a new one is worth more.

    That is one of which another run is expected to raise what can be recommended by more than a new setting promises:
    better than the one to recommend now, but not yet sure to keep the limits, or undecided so far. Or the best, when it
    just became that by a single run. Depends on the history alone.

    Args:
        history: Ended trials.
        expected: What is learnt from them.
        standing: The contenders among them; None when no trial was feasible.
        hoped: What the best new setting is worth: its expected gain as a share of the objective; while no setting
            probably keeps the limits, the chance that it does.
    """
    row = _doubtful(history, expected, standing, hoped)
    if row is None and standing is not None:
        row = _new_best(history, expected, standing)
    return None if row is None else expected.encoding.params(row)


def _doubtful(history: Sequence[Seen], expected: Outlook, standing: Standing | None, hoped: float) -> FloatArray | None:
    """The row of codes whose next run has the largest expected gain, if that is more than is hoped for elsewhere."""
    if expected.value is None:
        return None
    measured = np.array([place for place, trial in enumerate(history) if trial.value is not None], dtype=int)
    points = expected.points[measured]
    keys = expected.encoding.keys(points.rows)
    again = np.array([keys.count(key) < _MOST_RUNS for key in keys])
    mean, _ = expected.value.predict(points)
    hopeful = np.exp(expected.log_feasible(points)) >= _HOPEFUL
    if not np.any(hopeful):
        return None
    if standing is not None and standing.sure:
        known = float(standing.mean[standing.chosen])
    else:
        known = float(np.min(mean[hopeful])) - _BELOW_ALL
    gain = np.maximum(mean - known, 0.0) * np.exp(expected.log_sure_after_run(points)) * (hopeful & again)
    place = int(np.argmax(gain))
    return points.rows[place] if gain[place] > max(hoped, _LEAST_GAIN) else None


def _new_best(history: Sequence[Seen], expected: Outlook, standing: Standing) -> FloatArray | None:
    """The row of the best that probably keeps the limits, if the last trial was the first to measure it."""
    hopeful = np.flatnonzero(standing.probability >= _HOPEFUL)
    if not len(hopeful) or _was_repeated_lately(expected):
        return None
    best = int(hopeful[np.argmax(standing.mean[hopeful])])
    contender = standing.contenders[best]
    is_new = contender.runs == 1 and contender.number == history[-1].number
    return standing.points.rows[best] if is_new else None


def _was_repeated_lately(expected: Outlook) -> bool:
    """Whether one of the last trials measured a setting that an earlier one had measured."""
    keys = expected.encoding.keys(expected.points.rows)
    start = max(len(keys) - REPEAT_EVERY + 1, 0)
    return any(keys[place] in keys[:place] for place in range(start, len(keys)))
