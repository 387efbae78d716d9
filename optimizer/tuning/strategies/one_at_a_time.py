"""One parameter after another, each kept at its best value: how people tune by hand."""

from __future__ import annotations

from collections.abc import Iterator

from optimizer.core.trial import TrialState
from optimizer.search_spaces import SearchSpace
from optimizer.tuning.nearest_fit import grid
from optimizer.tuning.strategies.levels import BASELINE, COARSE, FINE, Key, base_setting, key_of
from optimizer.tuning.strategy import Ask, Params, Seen

ORDER = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
    "max-model-len",
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "kv-cache-dtype",
    "block-size",
)
"""The order in which tuning guides take them up; other parameters follow as they are declared."""


class OneAtATime:
    """Starts from the baseline, tries the values of one parameter, keeps the best, and goes on with the next.

    When a round over all parameters changes nothing a finer round follows, and then it has nothing more to say. Where
    it stands follows from the history alone.

    Args:
        space: The parameters.
    """

    name = "one-at-a-time"

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        usual = [n for flag in ORDER for n, p in space.parameters.items() if flag in p.flag_names(n)]
        self._order = tuple(dict.fromkeys((*usual, *space.parameters)))

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """The next untried values, beside the best of what comes before them in the order."""
        base = base_setting(self._space, ask)
        standing = next((trial for trial in ask.history if trial.number == BASELINE), None)
        results = _best_by_setting(ask)
        for points in (COARSE, FINE):
            moved = True
            while moved:
                moved = False
                for name in self._order:
                    kept = base[name]
                    for full in self._line(base, name, points):
                        params = self._space.existing(full)
                        result = results.get(key_of(params))
                        if result is None and ask.keeps_rules(params) and params not in ask.pending:
                            yield full
                        if result is not None and rank(result) > rank(standing):
                            kept, standing, moved = full[name], result, True
                    base = {**base, name: kept}

    def _line(self, base: Params, name: str, points: int) -> list[Params]:
        """The setting with each other value of the parameter; none where the parameter does not exist."""
        if name not in self._space.existing(base):
            return []
        values = grid(self._space.parameters[name], points)
        return [{**base, name: value} for value in values if value != base[name]]


def rank(trial: Seen | None) -> tuple[int, float]:
    """Larger is better: feasible by its value, then undecided, measured, crashed, by how far each is from good."""
    if trial is None:
        return (-1, 0.0)
    if trial.crash is not None:
        return (0, -trial.crash)
    excess = sum(max(0.0, limit.mean) for limit in trial.limits.values())
    if trial.state is TrialState.FEASIBLE and trial.value is not None:
        return (3, trial.value.mean)
    return (2 if trial.state is TrialState.UNDECIDED else 1, -excess)


def _best_by_setting(ask: Ask) -> dict[Key, Seen]:
    results: dict[Key, Seen] = {}
    for trial in ask.history:
        key = key_of(trial.params)
        if rank(trial) > rank(results.get(key)):
            results[key] = trial
    return results
