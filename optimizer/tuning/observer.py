"""What a study tells whoever watches it; the command line shows it, tests record it."""

from __future__ import annotations

from typing import Protocol

from optimizer.core.failure import Failure
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.trial import Stage


class StudyObserver(Protocol):
    """Receives the events of a study, in order, on the study's own thread. Must return at once and not raise."""

    def study_opened(self, study: StudyRecord, trials: list[TrialRecord], *, total_trials: int) -> None:
        """The study exists and `trials` were there already (a resume when not empty)."""

    def trial_started(self, trial: TrialRecord, *, attempt: int) -> None:
        """An attempt at a trial begins."""

    def stage_entered(self, number: int, stage: Stage) -> None:
        """The running trial enters a stage."""

    def load_progress(self, number: int, *, done_requests: int, elapsed_s: float, window_s: float) -> None:
        """How far the measuring window is; at most a few times a second."""

    def attempt_failed(self, number: int, failure: Failure, *, will_retry: bool) -> None:
        """An attempt failed; `will_retry` says whether another follows at once."""

    def trial_finished(self, trial: TrialRecord) -> None:
        """A trial reached a final state and is recorded."""

    def notice(self, text: str) -> None:
        """A remark for the person who watches."""
