"""The search of a study, put together from its configuration."""

from __future__ import annotations

from optimizer.config import StudyConfig
from optimizer.core.record import ParamValue
from optimizer.storage import StudyStore
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import DEFAULT_NUMBER, Settings


def make_search(config: StudyConfig, settings: Settings, store: StudyStore | None) -> OptunaSearch:
    """The study's search, new or as it stands in the store; None keeps it in memory.

    Raises:
        HostError: The database cannot be used.
    """
    sampler = RuleKeepingSampler(
        config.space, settings.broken_rules, fixed=settings.fixed_proposals(), seed=config.seed
    )
    objective = config.objective
    return OptunaSearch(store, config.study, metric=objective.metric, maximise=objective.maximise, sampler=sampler)


def first_proposals(config: StudyConfig, settings: Settings, count: int) -> list[tuple[int, dict[str, ParamValue]]]:
    """Number and parameters of the first trials of a study without a history; nothing is written.

    Raises:
        InputError: The rules of the space leave no setting.
    """
    search = make_search(config, settings, None)
    return [search.ask() for _ in range(count)]


def check_rules(config: StudyConfig, settings: Settings) -> None:
    """Raises InputError when the rules of the space leave no setting: before an engine is started, not after two."""
    first_proposals(config, settings, DEFAULT_NUMBER + 2)
