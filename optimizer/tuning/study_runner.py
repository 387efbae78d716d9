"""The loop of a study: adopt what was interrupted, then ask, run, score, record, tell, until trials or time run out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from optimizer.core.confirmation import study_trials
from optimizer.core.errors import InputError
from optimizer.core.failure import FailureKind
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import ParamValue, StudyRecord, TrialRecord
from optimizer.core.study_end import StudyEnd
from optimizer.core.trial import TrialRole, TrialState
from optimizer.engine.memory import MemoryPrediction
from optimizer.host.processes import is_alive
from optimizer.objectives import USUAL_RULES, Limit, Objective, Slo, VerdictRules, resolve_limits
from optimizer.storage import StudyStore
from optimizer.tuning.attempts import OutOfTime, TrialAttempts, Trouble, new_trial
from optimizer.tuning.judging import host_error, judged
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import MemoryPrescreen, misfit_of
from optimizer.tuning.settings import BASELINE_NUMBER, Settings, role_of

_TIME_MARGIN = 1.15
GAIN_PROPOSALS = 3
"""So many proposals of the search in a row must promise less than is worth a trial before a study ends for that: one
that does so by chance is common while a model has seen little."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much the study may use.

    Attributes:
        trials: Total of the study, those of earlier runs included.
        time_s: For this run; None is no limit.
        first_trial_s: What a trial is expected to take before one has been timed.
        least_gain: What a trial must be expected to bring over the best, as a share of it; None asks for nothing.
    """

    trials: int
    time_s: float | None
    first_trial_s: float
    least_gain: float | None = None


Advise: TypeAlias = Callable[[Sequence[TrialRecord]], Recommendation | None]


class StudyRunner:
    """Runs one study from where its record stands.

    Args:
        store: The record.
        study: The study's own record, which exists in the store.
        search: Proposes, and learns.
        settings: Turns parameters into what is launched.
        attempts: Brings one trial to its end.
        objective: What is sought.
        slos: The limits, as the user stated them.
        observer: Is told.
        prescreen: Predicts the engines' memory; None where that cannot be done.
        rules: How sure a verdict must be.
        advise: Says which of the measured settings to use, given the study's trials; None records no recommendation.
    """

    def __init__(
        self,
        store: StudyStore,
        study: StudyRecord,
        *,
        search: OptunaSearch,
        settings: Settings,
        attempts: TrialAttempts,
        objective: Objective,
        slos: tuple[Slo, ...],
        observer: StudyObserver,
        prescreen: MemoryPrescreen | None = None,
        rules: VerdictRules = USUAL_RULES,
        advise: Advise | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._study = study
        self._search = search
        self._settings = settings
        self._attempts = attempts
        self._objective = objective
        self._slos = slos
        self._observer = observer
        self._prescreen = prescreen
        self._rules = rules
        self._advise = advise
        self._now_s = now_s

    async def run(self, budget: Budget) -> StudyEnd:
        """Go on until the study has its trials, no further one can be finished in time, or none is worth it.

        Raises:
            InputError: The engine refuses a flag, or the limits cannot be told against this baseline.
            HostError: The host failed so often that the study cannot go on.
            asyncio.CancelledError: Interrupted; the record is complete.
        """
        has_time = self._clock_of(budget)
        unfinished = self._reconcile()
        trials = self._trials()
        self._observer.study_opened(self._study, trials, total_trials=budget.trials)
        for trial in trials:
            self._stop_if_refused(trial)
        self._check_baseline(trials)
        self._recommend()
        while self._finished() < budget.trials:
            if not has_time():
                return StudyEnd.TIME_BUDGET
            if unfinished:
                number = unfinished.pop(0)
                params = self._search.ask_again(number)
            elif self._search.is_exhausted():
                return StudyEnd.EXHAUSTED
            elif self._promises_little(budget):
                return StudyEnd.LITTLE_GAIN
            else:
                number, params = self._search.ask()
            if not await self._run_trial(number, params, has_time):
                return StudyEnd.TIME_BUDGET
        return StudyEnd.TRIALS

    def _promises_little(self, budget: Budget) -> bool:
        """Whether the last proposals that the search foretold anything of were none of them worth a trial."""
        if budget.least_gain is None:
            return False
        gain = self._search.expected_gain(GAIN_PROPOSALS)
        return gain is not None and gain < budget.least_gain

    def _clock_of(self, budget: Budget) -> Callable[[], bool]:
        """Tells, from now on, whether a further attempt can be finished in time."""
        begun_s, time_s = self._now_s(), budget.time_s
        if time_s is None:
            return lambda: True
        return lambda: self._now_s() - begun_s + self._expected_trial_s(budget) <= time_s

    def _reconcile(self) -> list[int]:
        """Bring record and search into line after a crash; returns the trials that must be run (again)."""
        name = self._study.name
        self._store.mark_interrupted(name, is_alive)
        for trial in self._trials():
            if trial.state.is_final:
                self._search.tell(trial)
        return self._search.open_numbers()

    def _trials(self) -> list[TrialRecord]:
        """The study's own trials: what repeats a winner on held-out traffic is no part of the search."""
        return study_trials(self._store.trials(self._study.name))

    def _finished(self) -> int:
        return sum(trial.state.is_final for trial in self._trials())

    def _expected_trial_s(self, budget: Budget) -> float:
        """The longest attempt at a trial so far, with a margin; a guess before the first."""
        durations = [
            (attempt.ended_at - attempt.started_at).total_seconds()
            for trial in self._trials()
            for attempt in trial.attempts
            if attempt.ended_at is not None and trial.state.is_final
        ]
        return max(durations) * _TIME_MARGIN if durations else budget.first_trial_s

    async def _run_trial(self, number: int, params: dict[str, ParamValue], has_time: Callable[[], bool]) -> bool:
        """Run the trial to its end; False when it is left to the next run for want of time."""
        role = role_of(number)
        config = self._settings.resolve(role, params).config
        prediction = None if self._prescreen is None else self._prescreen.predict(config)
        notes = (*self._search.notes(number), *_launched_all_the_same(prediction))
        trial = replace(new_trial(self._study.name, number, role, params, config), notes=notes)
        self._store.put_trial(trial)
        try:
            result = await self._attempts.run(trial, has_time=has_time)
            if isinstance(result, Trouble):
                raise host_error(trial, result.failure, result.in_a_row)
            if isinstance(result, OutOfTime):
                self._set_aside(trial)
                return False
            final = judged(
                *result,
                objective=self._objective,
                limits=lambda metrics: self._limits(metrics if role is TrialRole.BASELINE else None),
                prediction=prediction,
                rules=self._rules,
            )
        except BaseException:
            self._set_aside(trial)
            raise
        self._store.put_trial(final)
        self._search.tell(final)
        self._recommend()
        self._observer.trial_finished(final)
        self._stop_if_refused(final)
        self._check_baseline([final])
        return True

    def _recommend(self) -> None:
        """Record which of the settings measured so far to use: the study may end at any moment."""
        if self._advise is not None:
            self._store.put_recommendation(self._study.name, self._advise(self._trials()))

    def _set_aside(self, trial: TrialRecord) -> None:
        """Leave the trial for the next run, which will adopt it under its number."""
        current = self._store.trial(self._study.name, trial.number) or trial
        self._store.put_trial(replace(current, state=TrialState.INTERRUPTED))

    def _limits(self, own_metrics: Mapping[str, float | None] | None) -> tuple[Limit, ...]:
        if own_metrics is not None:
            return resolve_limits(self._slos, own_metrics, of_baseline=True)
        baseline = self._store.trial(self._study.name, BASELINE_NUMBER)
        return resolve_limits(self._slos, baseline.metrics if baseline is not None else {})

    def _check_baseline(self, trials: list[TrialRecord]) -> None:
        """Limits relative to the baseline need a baseline that was measured.

        Raises:
            InputError: It failed.
        """
        relative = [slo for slo in self._slos if slo.is_relative]
        for trial in trials:
            if trial.role is TrialRole.BASELINE and trial.state is TrialState.FAILED and relative and trial.failure:
                raise InputError(
                    f"the baseline failed ({trial.failure.kind}: {trial.failure.detail}), "
                    f"and the limit {relative[0].name} is relative to it",
                    hint="mend --baseline or give an absolute limit (--slo p99_e2e_ms=800), and a new --study name",
                )

    def _stop_if_refused(self, trial: TrialRecord) -> None:
        """A flag that the engine does not know fails every trial that sets it: stop at the first.

        Raises:
            InputError: The trial's flags were refused.
        """
        failure = trial.failure
        if failure is not None and failure.kind is FailureKind.REJECTED_FLAG:
            origin = "the baseline" if trial.role is TrialRole.BASELINE else f"trial {trial.number}"
            raise InputError(
                f"{failure.detail} ({origin}, {trial.config.engine if trial.config else 'engine'})",
                hint="correct the space or --baseline, and take a new --study name",
            )


def _launched_all_the_same(prediction: MemoryPrediction | None) -> tuple[str, ...]:
    """A note for a trial that was not drawn, or is tried again: the user's word counts for more than a prediction."""
    misfit = misfit_of(prediction)
    return () if misfit is None else (f"launched although it is not expected to start: {misfit.reason}",)
