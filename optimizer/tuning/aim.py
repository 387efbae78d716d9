"""What the load of one attempt has to find out, so that it can stop when it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.core.record import TrialRecord, best_trial
from optimizer.core.trial import TrialRole
from optimizer.objectives import USUAL_RULES, Limit, Objective, Slo, VerdictRules, resolve_limits


@dataclass(frozen=True, slots=True)
class Aim:
    """What is asked of one attempt.

    Attributes:
        objective: What is sought.
        limits: What must hold, in milliseconds.
        to_measure: Limits that are multiples of what this very attempt will measure; there the percentile itself must
            be found.
        rules: How sure a verdict must be.
        incumbent: The best feasible value so far, which ends an attempt that cannot beat it; None lets it go on.
        whole: Whether the figures themselves are wanted: a limit that cannot hold then ends no window early.
    """

    objective: Objective
    limits: tuple[Limit, ...] = ()
    to_measure: tuple[Slo, ...] = ()
    rules: VerdictRules = USUAL_RULES
    incumbent: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class StudyGoal:
    """What a study seeks.

    Attributes:
        objective: What is sought.
        slos: The limits as the user stated them.
        rules: How sure a verdict must be.
    """

    objective: Objective
    slos: tuple[Slo, ...] = ()
    rules: VerdictRules = USUAL_RULES

    def aim(self, role: TrialRole, trials: Sequence[TrialRecord]) -> Aim:
        """The aim of a trial's attempt that begins now.

        Only a proposal of the search can be given up for the best so far: baseline and defaults are what it is compared
        with, and a confirmation needs its whole figure.

        Args:
            role: The trial's.
            trials: All of the study so far.
        """
        baseline = next((trial for trial in trials if trial.role is TrialRole.BASELINE), None)
        measured: Mapping[str, float | None] = {} if baseline is None else baseline.metrics
        known = tuple(slo for slo in self.slos if not slo.is_relative or (measured.get(slo.name) or 0.0) > 0.0)
        if role is TrialRole.BASELINE:
            known = tuple(slo for slo in self.slos if not slo.is_relative)
        best = best_trial(list(trials), maximise=self.objective.maximise) if role is TrialRole.SEARCH else None
        return Aim(
            objective=self.objective,
            limits=resolve_limits(known, measured),
            to_measure=tuple(slo for slo in self.slos if slo not in known),
            rules=self.rules,
            incumbent=None if best is None else best.value,
            whole=role is TrialRole.CONFIRM,
        )
