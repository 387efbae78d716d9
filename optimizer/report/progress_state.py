"""What is known of a running study at one instant; every event makes a new state from the last."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from optimizer.core.record import StudyRecord, TrialRecord, best_trial
from optimizer.core.trial import Stage
from optimizer.report.changes import baseline_of
from optimizer.report.wording import trial_seconds


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far the measuring window is."""

    done_requests: int
    elapsed_s: float
    window_s: float

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.elapsed_s / self.window_s) if self.window_s > 0 else 1.0


@dataclass(frozen=True, slots=True)
class CurrentTrial:
    """The trial that runs. Times are seconds on the clock of whoever feeds the state."""

    trial: TrialRecord
    attempt: int
    started_s: float
    stage: Stage | None = None
    stage_started_s: float = 0.0
    load: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """A study as its events told it so far.

    Attributes:
        trials: The last record of every trial heard of, by number.
        durations_s: How long each trial that ended took.
    """

    study: StudyRecord
    total_trials: int
    trials: tuple[TrialRecord, ...] = ()
    durations_s: tuple[float, ...] = ()
    current: CurrentTrial | None = None
    baseline: TrialRecord | None = field(default=None)
    best: TrialRecord | None = field(default=None)

    @classmethod
    def opened(cls, study: StudyRecord, trials: list[TrialRecord], total_trials: int) -> StudyProgress:
        """The state at the start of a run."""
        times = (trial_seconds(trial) for trial in trials if trial.state.is_final)
        return cls(study, total_trials, durations_s=tuple(t for t in times if t is not None))._with_trials(trials)

    def trial_started(self, trial: TrialRecord, attempt: int, now_s: float) -> StudyProgress:
        """An attempt began."""
        current = CurrentTrial(trial, attempt, now_s, stage_started_s=now_s)
        return replace(self._with_trials([trial]), current=current)

    def stage_entered(self, stage: Stage, now_s: float) -> StudyProgress:
        """The running trial entered a stage."""
        if self.current is None:
            return self
        return replace(self, current=replace(self.current, stage=stage, stage_started_s=now_s, load=None))

    def load_progressed(self, load: LoadProgress) -> StudyProgress:
        """The measuring window went on."""
        return self if self.current is None else replace(self, current=replace(self.current, load=load))

    def trial_finished(self, trial: TrialRecord, now_s: float) -> StudyProgress:
        """A trial reached a final state; its time counts from its record, or else from the clock."""
        seconds = trial_seconds(trial)
        if seconds is None and self.current is not None:
            seconds = now_s - self.current.started_s
        durations = self.durations_s if seconds is None else (*self.durations_s, seconds)
        return replace(self._with_trials([trial]), durations_s=durations, current=None)

    @property
    def trials_left(self) -> int:
        """Trials to come, the running one included."""
        return max(0, self.total_trials - sum(trial.state.is_final for trial in self.trials))

    def time_left_s(self, now_s: float) -> float | None:
        """Estimate from the mean time of the trials that ended; None before the first."""
        if not self.durations_s:
            return None
        mean_s = sum(self.durations_s) / len(self.durations_s)
        spent_s = 0.0 if self.current is None else min(mean_s, now_s - self.current.started_s)
        return max(0.0, self.trials_left * mean_s - spent_s)

    def _with_trials(self, news: list[TrialRecord]) -> StudyProgress:
        by_number = {trial.number: trial for trial in (*self.trials, *news)}
        trials = [by_number[number] for number in sorted(by_number)]
        best = best_trial(trials, maximise=self.study.maximise)
        return replace(self, trials=tuple(trials), baseline=baseline_of(trials), best=best)
