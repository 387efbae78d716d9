"""The search of a study, put together from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.app.knowledge import StudyKnowledge, study_knowledge
from optimizer.app.memory import study_memory
from optimizer.config import StudyConfig
from optimizer.core.confirmation import study_trials
from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.host.blas import use_one_blas_thread
from optimizer.storage import StudyStore
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import MemoryPrescreen
from optimizer.tuning.recommend import recommend
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import DEFAULT_NUMBER, Settings
from optimizer.tuning.strategies import strategy_named
from optimizer.tuning.strategies.catalogue import MODELLING
from optimizer.tuning.strategy import ForeseesGain
from optimizer.tuning.study_runner import Advise


def make_search(
    config: StudyConfig,
    settings: Settings,
    store: StudyStore | None,
    prescreen: MemoryPrescreen | None = None,
    knowledge: StudyKnowledge | None = None,
) -> OptunaSearch:
    """The study's search, new or as it stands in the store; None keeps it in memory.

    Args:
        config: The study.
        settings: Turns parameters into what is launched.
        store: The record.
        prescreen: Tells what cannot start; None lets every proposal be launched.
        knowledge: What a sampler that models anything begins with; None begins it with nothing.

    Raises:
        InputError: What the sampler needs is not installed, or it cannot tell when the study shall end.
        HostError: The database cannot be used.
    """
    use_one_blas_thread()
    used = knowledge if config.sampler in MODELLING else None
    strategy = strategy_named(
        config.sampler,
        config.space,
        prior=None if used is None else used.prior,
        memory_of=None if used is None else used.memory_of,
    )
    if config.least_gain is not None and not isinstance(strategy, ForeseesGain):
        raise InputError(
            f"--stop-below-gain: the sampler {config.sampler} does not say what it expects of a trial",
            hint="take one that does (--sampler gp), or end the study by --trials or --time-budget",
        )
    sampler = RuleKeepingSampler(
        config.space,
        settings.broken_rules,
        fixed=settings.fixed_proposals(),
        seed=config.seed,
        prescreen=None if prescreen is None else prescreen.opened,
        strategy=strategy,
        records=(lambda: ()) if store is None else (lambda: study_trials(store.trials(config.study))),
        first=() if used is None else used.first,
        flips=config.sampler in MODELLING,
        flags_of=settings.flags,
    )
    objective = config.objective
    return OptunaSearch(store, config.study, metric=objective.metric, maximise=objective.maximise, sampler=sampler)


def make_adviser(config: StudyConfig, knowledge: StudyKnowledge) -> Advise:
    """Says which of a study's measured settings to use, whichever sampler proposed them."""
    return lambda trials: recommend(trials, config.space, prior=knowledge.prior)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a study would try: the trial's number and parameters, and how it came to be proposed."""

    number: int
    params: dict[str, ParamValue]
    notes: tuple[str, ...]


def first_proposals(config: StudyConfig, settings: Settings, count: int) -> list[Proposal]:
    """The first trials of a study without a history; nothing is written.

    Raises:
        InputError: The rules of the space leave no setting, or nothing in it can start for want of memory.
    """
    prescreen = study_memory(config, settings, lambda: ()).prescreen
    if prescreen is not None:
        prescreen.require_any_fit(config.space)
    knowledge = study_knowledge(config, settings, prescreen) if config.sampler in MODELLING else None
    search = make_search(config, settings, None, prescreen, knowledge)
    asked = (search.ask() for _ in range(count))
    return [Proposal(number, params, search.notes(number)) for number, params in asked]


def check_rules(config: StudyConfig, settings: Settings) -> None:
    """Find out before an engine is started, not after two, that a space leaves nothing to try.

    Raises:
        InputError: The rules of the space leave no setting, or nothing in it can start for want of memory.
    """
    first_proposals(config, settings, DEFAULT_NUMBER + 2)
