"""The life of a trial: its role, its states and stages, and which state may follow which.

The same machine is drawn in `docs/architecture.md`; a unit test compares the two.
"""

from __future__ import annotations

import enum


class TrialRole(enum.StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    """Trial 0: the user's present flags."""
    DEFAULT = "default"
    """Trial 1: no searched flag is set, so vLLM's own defaults hold."""
    SEARCH = "search"
    """A proposal of the search."""
    CONFIRM = "confirm"
    """A repeat of a setting on held-out traffic."""


class TrialState(enum.StrEnum):
    """What became of a trial. Exactly one holds at any time."""

    RUNNING = "running"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNDECIDED = "undecided"
    DOMINATED = "dominated"
    """Ended early: whatever its tail, it could not beat the incumbent."""
    FAILED = "failed"
    REJECTED = "rejected"
    """Never launched: it breaks a rule or cannot fit."""
    INTERRUPTED = "interrupted"
    """Its owner is gone. A resumed study adopts it as another attempt under the same number."""

    @property
    def is_final(self) -> bool:
        """True when the trial will not be run again."""
        return self not in (TrialState.RUNNING, TrialState.INTERRUPTED)


TRANSITIONS: dict[TrialState, frozenset[TrialState]] = {
    TrialState.RUNNING: frozenset(TrialState) - {TrialState.RUNNING},
    TrialState.INTERRUPTED: frozenset({TrialState.RUNNING}),
    **{state: frozenset[TrialState]() for state in TrialState if state.is_final},
}
"""From each state, the states that may follow."""


class Stage(enum.StrEnum):
    """Where in a trial time went, or a failure struck."""

    LAUNCHING = "launching"
    WARMING_UP = "warming_up"
    MEASURING = "measuring"
    STOPPING = "stopping"
