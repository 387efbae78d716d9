"""Why a run of a study ended in good order."""

from __future__ import annotations

import enum


class StudyEnd(enum.StrEnum):
    """What came first."""

    TRIALS = "trials"
    """The study has all its trials."""
    TIME_BUDGET = "time_budget"
    """No further trial could be finished in time."""
    EXHAUSTED = "exhausted"
    """Every setting of the space that may be launched was tried."""
    LITTLE_GAIN = "little_gain"
    """The search expected less of its last proposals than is worth a trial."""
