"""Repeats the winner and the baseline on held-out traffic, in turn, each run on a freshly started engine."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from optimizer.core.confirmation import Arm, arm_of, confirmation_number
from optimizer.core.record import ParamValue, StudyRecord, TrialRecord
from optimizer.core.trial import TrialRole, TrialState
from optimizer.host.processes import is_alive
from optimizer.objectives import Limit, Objective, VerdictRules
from optimizer.storage import StudyStore
from optimizer.tuning.attempts import OutOfTime, TrialAttempts, Trouble, new_trial
from optimizer.tuning.judging import host_error, judged
from optimizer.tuning.observer import StudyObserver
from optimizer.tuning.settings import ResolvedConfig, Settings


def held_out_seed(seed: int) -> int:
    """Seed of the traffic of all confirmations of a study: derived from the study's, and never the same."""
    derived = zlib.crc32(f"held out from {seed}".encode())
    return derived if derived != seed else derived + 1


@dataclass(frozen=True, slots=True)
class RepeatSettings(Settings):
    """Settings that launch what a trial of another role launched: the baseline's flags stand in no parameters.

    Attributes:
        repeated: Role of the trial that is repeated.
    """

    repeated: TrialRole = TrialRole.SEARCH

    def resolve(self, role: TrialRole, params: Mapping[str, ParamValue]) -> ResolvedConfig:
        """What the repeated trial launched, its memory a fraction of what the host has at this moment."""
        return super(RepeatSettings, self).resolve(self.repeated, params)


class ConfirmationRunner:
    """Makes the runs of one confirmation; those that are recorded already are not made again.

    The search never hears of them: they have no proposal in it.

    Args:
        store: The record.
        study: The study's record.
        repeated: The winner and the baseline, as the study recorded them.
        attempts: Brings a run of each to its end, on the held-out traffic.
        settings: Turns each one's parameters into what is launched.
        objective: What is sought.
        limits: What must hold, in milliseconds.
        rules: How sure a verdict must be.
        observer: Is told.
    """

    def __init__(
        self,
        store: StudyStore,
        study: StudyRecord,
        *,
        repeated: Mapping[Arm, TrialRecord],
        attempts: Mapping[Arm, TrialAttempts],
        settings: Mapping[Arm, Settings],
        objective: Objective,
        limits: tuple[Limit, ...],
        rules: VerdictRules,
        observer: StudyObserver,
    ) -> None:
        self._store = store
        self._study = study
        self._repeated = repeated
        self._attempts = attempts
        self._settings = settings
        self._objective = objective
        self._limits = limits
        self._rules = rules
        self._observer = observer

    async def run(self, repeats: int) -> None:
        """Make the missing runs, so many of each setting in all; ends early when one of the two fails.

        Raises:
            HostError: The host spoiled too many attempts in a row.
            asyncio.CancelledError: Interrupted; the record is complete.
        """
        self._store.mark_interrupted(self._study.name, is_alive)
        for run in range(2 * repeats):
            number = confirmation_number(self._repeated[Arm.WINNER].number, run)
            trial = self._store.trial(self._study.name, number)
            if trial is None or not trial.state.is_final:
                trial = await self._make(number, arm_of(run))
            if trial.state is TrialState.FAILED:
                return

    async def _make(self, number: int, arm: Arm) -> TrialRecord:
        repeated = self._repeated[arm]
        config = self._settings[arm].resolve(TrialRole.CONFIRM, repeated.params).config
        trial = new_trial(self._study.name, number, TrialRole.CONFIRM, repeated.params, config)
        trial = replace(trial, notes=(f"repeats trial {repeated.number} ({arm}) on held-out traffic",))
        self._store.put_trial(trial)
        try:
            result = await self._attempts[arm].run(trial)
            if isinstance(result, Trouble | OutOfTime):
                in_a_row = result.in_a_row if isinstance(result, Trouble) else 1
                raise host_error(trial, result.failure, in_a_row)
            final = judged(*result, objective=self._objective, limits=lambda _: self._limits, rules=self._rules)
        except BaseException:
            current = self._store.trial(self._study.name, number) or trial
            self._store.put_trial(replace(current, state=TrialState.INTERRUPTED))
            raise
        self._store.put_trial(final)
        self._observer.trial_finished(self._store.trial(self._study.name, number) or final)
        return final
