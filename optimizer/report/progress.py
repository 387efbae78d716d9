"""Progress of a running study: a live region on a terminal, one line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from optimizer.core.failure import Failure
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.core.trial import Stage, TrialState
from optimizer.report import progress_text
from optimizer.report.changes import trial_changes
from optimizer.report.progress_state import CurrentTrial, LoadProgress, StudyProgress
from optimizer.report.simulation import SIMULATED, is_simulated
from optimizer.report.wording import duration, stage_name

STATE_STYLES = {
    TrialState.FEASIBLE: "green",
    TrialState.INFEASIBLE: "yellow",
    TrialState.UNDECIDED: "yellow",
    TrialState.DOMINATED: "dim",
    TrialState.FAILED: "red",
    TrialState.REJECTED: "magenta",
    TrialState.INTERRUPTED: "blue",
    TrialState.RUNNING: "cyan",
}
_REFRESH_PER_S = 4


class _Progress:
    """What both displays do: keep the state, and hand each event's line to `_say`."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._state: StudyProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the display; what was printed stays."""

    def study_opened(self, study: StudyRecord, trials: list[TrialRecord], *, total_trials: int) -> None:
        """Tells what there is, and how much is to come."""
        self._state = StudyProgress.opened(study, trials, total_trials)
        self._say(progress_text.opened(self._state))
        if is_simulated(study):
            self._say(SIMULATED)

    def trial_started(self, trial: TrialRecord, *, attempt: int) -> None:
        """Notes the trial; the plain display tells it too."""
        if self._state is not None:
            self._state = self._state.trial_started(trial, attempt, self._clock())

    def stage_entered(self, number: int, stage: Stage) -> None:
        """Notes the stage; the plain display tells it too."""
        if self._state is not None:
            self._state = self._state.stage_entered(stage, self._clock())

    def load_progress(self, number: int, *, done_requests: int, elapsed_s: float, window_s: float) -> None:
        """Notes how far the measuring window is."""
        if self._state is not None:
            self._state = self._state.load_progressed(LoadProgress(done_requests, elapsed_s, window_s))

    def attempt_failed(self, number: int, failure: Failure, *, will_retry: bool) -> None:
        """Tells a failure that another attempt follows; the last one is told with the trial's end."""
        if will_retry:
            self._say(progress_text.attempt_failed(number, failure, will_retry=True))

    def trial_finished(self, trial: TrialRecord) -> None:
        """Tells what became of the trial."""
        if self._state is None:
            return
        self._state = self._state.trial_finished(trial, self._clock())
        self._tell_finished(trial, self._state)

    def notice(self, text: str) -> None:
        """Tells a remark."""
        self._say(text)

    def _say(self, line: str) -> None:
        raise NotImplementedError

    def _tell_finished(self, trial: TrialRecord, state: StudyProgress) -> None:
        raise NotImplementedError


class PlainProgress(_Progress):
    """One line an event, each with the time of day; for a pipe, a file or a CI log."""

    def trial_started(self, trial: TrialRecord, *, attempt: int) -> None:
        """Tells the trial and what it changes."""
        super().trial_started(trial, attempt=attempt)
        if self._state is not None:
            self._say(progress_text.started(self._state))

    def stage_entered(self, number: int, stage: Stage) -> None:
        """Tells the stage."""
        super().stage_entered(number, stage)
        if self._state is not None and self._state.current is not None:
            self._say(progress_text.stage(self._state.current))

    def _say(self, line: str) -> None:
        # One event must stay one line, whatever an engine put into a failure's detail.
        stamp = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        self._console.print(Text(f"{stamp} {' '.join(line.splitlines())}"), soft_wrap=True)

    def _tell_finished(self, trial: TrialRecord, state: StudyProgress) -> None:
        self._say(progress_text.finished(trial, state))
        if state.trials_left:
            self._say(f"{progress_text.best(state)}; {progress_text.left(state, self._clock())}")


class LiveProgress(_Progress):
    """A region that redraws itself below one lasting line for each finished trial."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock=clock)
        self._live = Live(
            console=console, refresh_per_second=_REFRESH_PER_S, transient=True, get_renderable=self.render
        )

    def close(self) -> None:
        """Takes the live region away."""
        self._live.stop()

    def study_opened(self, study: StudyRecord, trials: list[TrialRecord], *, total_trials: int) -> None:
        """Tells what there is, then starts to redraw."""
        super().study_opened(study, trials, total_trials=total_trials)
        self._live.start()

    def render(self) -> RenderableType:
        """The region as it stands now; called from the redrawing thread, so it reads the state once."""
        state = self._state
        if state is None:
            return Text("")
        now_s = self._clock()
        lines: list[RenderableType] = []
        if state.current is not None:
            lines.append(Text(progress_text.heading(state.current, state), style="bold"))
            changes = Text(trial_changes(state.current.trial, state.baseline), style="cyan")
            lines.append(Padding(changes, (0, 0, 0, 2), expand=False))
            lines += _stage_lines(state.current, now_s)
        lines.append(Text(progress_text.best(state)))
        lines.append(Text(progress_text.left(state, now_s), style="dim"))
        return Group(*lines)

    def _say(self, line: str) -> None:
        self._console.print(Text(line))

    def _tell_finished(self, trial: TrialRecord, state: StudyProgress) -> None:
        self._console.print(Text(progress_text.finished(trial, state), style=STATE_STYLES[trial.state]))
        changes = Text(trial_changes(trial, state.baseline), style="dim")
        self._console.print(Padding(changes, (0, 0, 0, 4), expand=False))


def _stage_lines(current: CurrentTrial, now_s: float) -> list[RenderableType]:
    if current.stage is None:
        return []
    elapsed = Text(f"{stage_name(current.stage)} for {duration(now_s - current.stage_started_s)}")
    if current.load is None:
        return [Padding(elapsed, (0, 0, 0, 2), expand=False)]
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=1.0, completed=current.load.share, width=20), progress_text.load(current.load))
    return [Padding(elapsed, (0, 0, 0, 2), expand=False), Padding(bar, (0, 0, 0, 2))]


def make_progress(console: Console) -> PlainProgress | LiveProgress:
    """The display that suits the console: live on a terminal, plain elsewhere."""
    # FORCE_COLOR makes rich take a pipe for a terminal: colours may go there, a region that redraws itself may not.
    return LiveProgress(console) if console.is_interactive and console.file.isatty() else PlainProgress(console)
