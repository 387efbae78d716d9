"""A study's history with what this ask has learnt of proposals that were never launched."""

from __future__ import annotations

from collections.abc import Mapping

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import TrialState, create_trial

from optimizer.core.record import ParamValue
from optimizer.tuning.violations import CRASH, clipped

_COPY = "history and rejects"
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class TaughtStudy:
    """The study itself, until something is learnt; from then on a copy in memory that holds it besides.

    The study's own record never holds a trial that was not a trial.

    Args:
        study: The study.
        distributions: Of all parameters.
    """

    def __init__(self, study: Study, distributions: Mapping[str, BaseDistribution]) -> None:
        self.study = study
        self._distributions = distributions
        self._storage: InMemoryStorage | None = None

    def learn(self, params: Mapping[str, ParamValue], violation: float) -> None:
        """Take in a setting that cannot start, as a trial that failed by so much is told."""
        if self._storage is None:
            self._storage = _copied(self.study)
        # A study reads its trials once for an ask; samplers see a further one through another object alone.
        self.study = optuna.load_study(study_name=_COPY, storage=self._storage)
        self.study.add_trial(
            create_trial(
                state=TrialState.PRUNED,
                params=dict(params),
                distributions={name: self._distributions[name] for name in params},
                constraints={CRASH: clipped(violation)},
            )
        )


def _copied(study: Study) -> InMemoryStorage:
    storage = InMemoryStorage()
    copy = optuna.create_study(storage=storage, study_name=_COPY, direction=study.direction)
    copy.add_trials(study.get_trials(deepcopy=False, states=_ENDED))
    return storage
