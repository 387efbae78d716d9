"""The search of a study, put together from its configuration."""

from __future__ import annotations

from optimizer.app.memory import study_memory
from optimizer.config import StudyConfig
from optimizer.core.record import ParamValue
from optimizer.storage import StudyStore
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import MemoryPrescreen
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import DEFAULT_NUMBER, Settings


def make_search(
    config: StudyConfig, settings: Settings, store: StudyStore | None, prescreen: MemoryPrescreen | None = None
) -> OptunaSearch:
    """The study's search, new or as it stands in the store; None keeps it in memory.

    Args:
        config: The study.
        settings: Turns parameters into what is launched.
        store: The record.
        prescreen: Tells what cannot start; None lets every proposal be launched.

    Raises:
        HostError: The database cannot be used.
    """
    sampler = RuleKeepingSampler(
        config.space,
        settings.broken_rules,
        fixed=settings.fixed_proposals(),
        seed=config.seed,
        prescreen=None if prescreen is None else prescreen.opened,
    )
    objective = config.objective
    return OptunaSearch(store, config.study, metric=objective.metric, maximise=objective.maximise, sampler=sampler)


def first_proposals(config: StudyConfig, settings: Settings, count: int) -> list[tuple[int, dict[str, ParamValue]]]:
    """Number and parameters of the first trials of a study without a history; nothing is written.

    Raises:
        InputError: The rules of the space leave no setting, or nothing in it can start for want of memory.
    """
    prescreen = study_memory(config, settings, lambda: ()).prescreen
    if prescreen is not None:
        prescreen.require_any_fit(config.space)
    search = make_search(config, settings, None, prescreen)
    return [search.ask() for _ in range(count)]


def check_rules(config: StudyConfig, settings: Settings) -> None:
    """Find out before an engine is started, not after two, that a space leaves nothing to try.

    Raises:
        InputError: The rules of the space leave no setting, or nothing in it can start for want of memory.
    """
    first_proposals(config, settings, DEFAULT_NUMBER + 2)
