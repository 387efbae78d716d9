"""When the best setting is measured again before it is believed.

The best of many runs owes part of its lead to luck, and one that lies just under a limit may lie over it. A second run
tells; it costs a trial, so it is asked for only where it may change what is recommended, and not often.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimizer.core.recommendation import CONFIDENCE
from optimizer.tuning.gp.outlook import Outlook
from optimizer.tuning.recommend import Standing
from optimizer.tuning.strategy import Params, Seen

REPEAT_EVERY = 5
"""Of so many trials in a row at most one is a repeat."""
_HOPEFUL = 0.5
"""A setting that keeps the limits less probably than this is not worth a second run."""
_MOST_RUNS = 3


def to_repeat(history: Sequence[Seen], expected: Outlook, standing: Standing | None) -> Params | None:
    """The best setting that probably keeps the limits, when its lead is not yet to be believed; None else.

    That is so while it keeps them with less than 95 %, or just became the best by a single run. Depends on the history
    alone.

    Args:
        history: Ended trials.
        expected: What is learnt from them.
        standing: The contenders among them; None when no trial was feasible.
    """
    if standing is None or _was_repeated_lately(expected):
        return None
    hopeful = np.flatnonzero(standing.probability >= _HOPEFUL)
    if not len(hopeful):
        return None
    best = int(hopeful[np.argmax(standing.mean[hopeful])])
    contender = standing.contenders[best]
    is_doubtful = standing.probability[best] < CONFIDENCE and contender.runs < _MOST_RUNS
    is_new = contender.runs == 1 and contender.number == history[-1].number
    if not is_doubtful and not is_new:
        return None
    return expected.encoding.params(standing.points.rows[best])


def _was_repeated_lately(expected: Outlook) -> bool:
    """Whether one of the last trials measured a setting that an earlier one had measured."""
    keys = expected.encoding.keys(expected.points.rows)
    start = max(len(keys) - REPEAT_EVERY + 1, 0)
    return any(keys[place] in keys[:place] for place in range(start, len(keys)))
