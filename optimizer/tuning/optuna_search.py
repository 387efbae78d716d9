"""The search as an ordinary Optuna study: ask for a proposal, tell what became of it.

Optuna's trial states are derived from ours here and nowhere else:

    feasible, infeasible     COMPLETE with the value and one constraint per limit
    undecided                COMPLETE, and the constraint `undecided` is violated, so that it is never Optuna's best
    failed (blame CONFIG)    PRUNED with the constraint `crash` violated by the graded violation
    rejected                 PRUNED with the constraint `crash` violated
    dominated                PRUNED with its constraints, and so is a value that is no finite number
    running, interrupted     RUNNING: it will be tried again under its number

A crash is never told as FAIL: samplers ignore FAIL and propose the same region again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState

from optimizer.core.record import ParamValue, TrialRecord
from optimizer.core.scoring import Constraint, Verdict
from optimizer.core.trial import TrialState as State
from optimizer.storage import StudyStore
from optimizer.storage.optuna_storage import optuna_errors, optuna_storage
from optimizer.tuning.distributions import suggest
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.violations import CRASH, clipped

_UNDECIDED = "undecided"
_SMALL_VIOLATION = 0.01
_WHY = "proposal"
"""User attribute of a trial: which kind of proposal it is."""
_REJECTS = "prescreen"
"""User attribute of a trial: what was rejected before it was proposed."""
_EXPECTED_GAIN = "expected_gain"
"""User attribute of a trial: what its strategy expected it to bring, as a share of the best before it."""
_ATTR_METRICS = ("p99_e2e_ms", "p99_ttft_ms", "p99_tpot_ms", "preemptions", "prefix_cache_hit_rate")


class OptunaSearch:
    """One Optuna study, driven by ask and tell. A context manager, which closes the connections to the database.

    Every call raises `HostError` when the database cannot be reached, read or written.

    Args:
        store: The history whose database holds the study; None keeps the study in memory.
        name: Study name.
        metric: Name of the objective's metric, shown by the dashboard.
        maximise: Direction.
        sampler: Proposes.
    """

    def __init__(
        self, store: StudyStore | None, name: str, *, metric: str, maximise: bool, sampler: RuleKeepingSampler
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._store = store
        self._sampler = sampler
        self._storage = None if store is None else optuna_storage(store)
        with self._errors():
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=name,
                direction="maximize" if maximise else "minimize",
                sampler=sampler,
                load_if_exists=True,
            )
            if self._study.metric_names is None:
                with warnings.catch_warnings():
                    # The dashboard names axes and columns with it; without it they read `Objective`.
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    self._study.set_metric_names([metric])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._storage is not None:
            self._storage.engine.dispose()

    def __len__(self) -> int:
        """How many trials Optuna knows, whatever their state."""
        with self._errors():
            return len(self._study.get_trials(deepcopy=False))

    def open_numbers(self) -> list[int]:
        """Numbers of the trials that were asked for and not yet told."""
        with self._errors():
            return [t.number for t in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))]

    def is_exhausted(self) -> bool:
        """Whether whatever is asked for now repeats a trial; a space that no trial was drawn from is not."""
        with self._errors():
            trials = self._study.get_trials(deepcopy=False)
            drawn = [trial.params for trial in trials if _WHY in trial.user_attrs]
            return bool(drawn) and self._sampler.is_exhausted([trial.params for trial in trials])

    def ask(self) -> tuple[int, dict[str, ParamValue]]:
        """Open the next trial. Returns its number and its parameters, only the active ones.

        Raises:
            InputError: The rules of the space leave no setting, or none of them fits into memory.
        """
        with self._errors():
            trial = self._study.ask()
            return trial.number, self._suggest(trial)

    def notes(self, number: int) -> tuple[str, ...]:
        """What a person should know of how a trial that was asked for came to be proposed."""
        with self._errors():
            attrs = self._frozen(number).user_attrs
            return tuple(str(attrs[key]) for key in (_WHY, _REJECTS) if key in attrs)

    def expected_gain(self, count: int) -> float | None:
        """The most that one of the strategy's last `count` proposals was expected to bring, as a share of the best.

        None where it said so of fewer, or a flip of the best is left, which it does not foresee.
        """
        with self._errors():
            trials = self._study.get_trials(deepcopy=False)
            gains = [float(t.user_attrs[_EXPECTED_GAIN]) for t in trials if _EXPECTED_GAIN in t.user_attrs][-count:]
            return None if len(gains) < count or self._sampler.has_flips(self._study) else max(gains)

    def ask_again(self, number: int) -> dict[str, ParamValue]:
        """The parameters of a trial that was asked for before; completes one whose asking was cut short."""
        with self._errors():
            frozen = self._frozen(number)
            if self._sampler.is_whole(frozen.params):
                return frozen.params
            return self._suggest(self._reopened(frozen))

    def tell(self, trial: TrialRecord) -> None:
        """Tell a final trial. Told twice, the second is ignored: a resume repairs a crash between record and tell."""
        with self._errors():
            frozen = self._frozen(trial.number)
            if frozen.state.is_finished():
                return
            live = self._reopened(frozen)
            for key, attr in _user_attrs(trial).items():
                live.set_user_attr(key, attr)
            # Optuna keeps the first value of a constraint; those there are from a tell that was cut short.
            known = frozen.constraints
            for key, violation in sorted(_constraints(trial).items()):
                if key not in known:
                    live.set_constraint(key, violation)
            state, value = _optuna_state(trial)
            self._study.tell(trial.number, values=value, state=state)

    def _suggest(self, trial: Trial) -> dict[str, ParamValue]:
        """Record a proposal: its notes first, so that a whole one has them whatever happens between."""
        parameters = self._sampler.parameters
        proposal = trial.relative_params
        told = self._sampler.last
        for key, value in ((_WHY, told.why), (_REJECTS, told.rejects), (_EXPECTED_GAIN, told.expected_gain)):
            if value is not None:
                trial.set_user_attr(key, value)
        return {name: suggest(trial, name, parameters[name]) for name in proposal}

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _reopened(self, frozen: FrozenTrial) -> Trial:
        """A trial that can be written to again. Optuna has no public way to a trial that an earlier process asked."""
        return Trial(self._study, frozen._trial_id)

    def _errors(self) -> AbstractContextManager[None]:
        return nullcontext() if self._store is None else optuna_errors(self._store)


def _optuna_state(trial: TrialRecord) -> tuple[TrialState, float | None]:
    measured = trial.state in (State.FEASIBLE, State.INFEASIBLE, State.UNDECIDED)
    if measured and trial.value is not None and math.isfinite(trial.value):
        return TrialState.COMPLETE, trial.value
    return TrialState.PRUNED, None


def _constraints(trial: TrialRecord) -> Mapping[str, float]:
    """What Optuna is told: a trial is feasible to it when none is above 0, and so exactly when it is to us."""
    if trial.state in (State.FAILED, State.REJECTED):
        graded = trial.failure.violation if trial.failure is not None else None
        return {CRASH: clipped(graded) if graded is not None and graded > 0 else 1.0}
    values = {CRASH: -1.0, _UNDECIDED: _SMALL_VIOLATION if trial.state is State.UNDECIDED else -1.0}
    if trial.score is not None:
        values |= {constraint.name: _violation(constraint) for constraint in trial.score.constraints}
    return values


def _violation(constraint: Constraint) -> float:
    """The graded violation, on the side of 0 that the verdict says; 0 where nothing was measured."""
    graded = constraint.violation
    if graded is None or math.isnan(graded):
        graded = 0.0
    if constraint.verdict is Verdict.FEASIBLE:
        return clipped(min(graded, 0.0))
    if constraint.verdict is Verdict.INFEASIBLE and graded <= 0.0:
        return _SMALL_VIOLATION
    return clipped(graded)


def _user_attrs(trial: TrialRecord) -> dict[str, ParamValue]:
    """Short columns for the dashboard's table."""
    attrs: dict[str, ParamValue] = {"state": trial.state.value, "role": trial.role.value}
    if trial.failure is not None:
        attrs["failure"] = trial.failure.kind.value
    for name in _ATTR_METRICS:
        value = trial.metrics.get(name)
        if value is not None:
            attrs[name] = round(value, 3)
    return attrs
