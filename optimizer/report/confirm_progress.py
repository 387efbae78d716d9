"""Progress of a confirmation: a line an event, on a terminal and in a pipe alike."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from optimizer.core.confirmation import Arm, arm_of, confirmed_trial, run_of
from optimizer.core.failure import Failure
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.trial import Stage
from optimizer.report import progress_text
from optimizer.report.wording import duration, failure_text, limit_text, stage_name, trial_seconds, value_text


class ConfirmProgress:
    """Receives the events of a confirmation, as `StudyObserver` does.

    Args:
        console: Where lines go.
        runs: How many runs there will be.
    """

    def __init__(self, console: Console, *, runs: int) -> None:
        self._console = console
        self._runs = runs

    def study_opened(self, study: StudyRecord, trials: list[TrialRecord], *, total_trials: int) -> None:
        """Not asked of a confirmation: its study was opened before."""

    def trial_started(self, trial: TrialRecord, *, attempt: int) -> None:
        """Tells which setting runs."""
        again = f", attempt {attempt}" if attempt > 1 else ""
        arm = arm_of(run_of(trial.number))
        setting = f"winner #{confirmed_trial(trial.number)}" if arm is Arm.WINNER else "baseline #0"
        self._say(f"{self._run(trial.number)}: {setting}{again}")

    def stage_entered(self, number: int, stage: Stage) -> None:
        """Tells the stage."""
        self._say(f"{self._run(number)}: {stage_name(stage)}")

    def load_progress(self, number: int, *, done_requests: int, elapsed_s: float, window_s: float) -> None:
        """Passes over it: a window is short beside a run."""

    def attempt_failed(self, number: int, failure: Failure, *, will_retry: bool) -> None:
        """Tells a failure, and what follows."""
        self._say(f"{self._run(number)}: {failure_text(failure)}{'; trying it again' if will_retry else ''}")

    def trial_finished(self, trial: TrialRecord) -> None:
        """Tells what a run came to."""
        figures = progress_text.failure(trial)
        if trial.score is not None:
            figures = [value_text(trial.score, None), *map(limit_text, trial.score.constraints)]
        words = [f"{self._run(trial.number)}:", trial.state.value, *figures, f"in {duration(trial_seconds(trial))}"]
        self._say("  ".join(words))

    def notice(self, text: str) -> None:
        """Tells a remark."""
        self._say(text)

    def _run(self, number: int) -> str:
        return f"run {run_of(number) + 1} of {self._runs}"

    def _say(self, line: str) -> None:
        stamp = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        self._console.print(Text(f"{stamp} {' '.join(line.splitlines())}"), soft_wrap=True)
