"""What is known of a study before its first trial, made ready for its search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optimizer.config import StudyConfig
from optimizer.engine.memory import CannotPredict, MemoryPrediction
from optimizer.tuning.first_trials import FirstSetting, first_settings
from optimizer.tuning.greybox import GreyBox, LaunchFlags, ServingFacts, facts_of
from optimizer.tuning.prescreen import MemoryPrescreen, misfit_of
from optimizer.tuning.settings import BASELINE_NUMBER, Settings
from optimizer.tuning.strategy import Params


@dataclass(frozen=True, slots=True)
class StudyKnowledge:
    """What a search begins with.

    Attributes:
        prior: A model of the engine that trials correct.
        first: Settings to begin with.
        memory_of: What the memory account foretells of a setting, by what was known when the ask began; None without
            an account.
    """

    prior: GreyBox
    first: tuple[FirstSetting, ...]
    memory_of: Callable[[Params], MemoryPrediction | None] | None


def study_knowledge(config: StudyConfig, settings: Settings, prescreen: MemoryPrescreen | None) -> StudyKnowledge:
    """The knowledge of a study.

    The first settings are derived from the account as it is before any start, so that a resumed study finds the same.

    Args:
        config: The study.
        settings: Turns parameters into what is launched.
        prescreen: Holds the memory account; None where the model is not at hand.

    Raises:
        InputError: The workload's file cannot be read or is wrong.
    """
    total = None if settings.device_memory_bytes is None else settings.device_memory_bytes()
    fixed = settings.flags({})
    facts = facts_of(
        config.workload,
        None if prescreen is None else prescreen.account,
        device_bytes=total if prescreen is None else prescreen.device_bytes,
        fixed_flags=fixed,
        env=None if prescreen is None else prescreen.inherited,
    )
    flags_of = LaunchFlags(config.space, fixed, device_memory_bytes=total)
    objective = config.objective
    return StudyKnowledge(
        prior=GreyBox(facts, flags_of, metric=objective.metric, maximise=objective.maximise),
        first=tuple(_first(config, settings, facts, _foretelling(prescreen, flags_of))),
        memory_of=None if prescreen is None else prescreen.foretold,
    )


def _first(
    config: StudyConfig,
    settings: Settings,
    facts: ServingFacts,
    foretold: Callable[[Params], MemoryPrediction | None],
) -> list[FirstSetting]:
    def pool_tokens(params: Params) -> float | None:
        prediction = foretold(params)
        return None if prediction is None else prediction.pool_tokens.mid

    return first_settings(
        config.space,
        facts,
        settings.fixed_proposals()[BASELINE_NUMBER],
        accepts=lambda params: not settings.broken_rules(params) and misfit_of(foretold(params)) is None,
        pool_tokens=pool_tokens,
    )


def _foretelling(
    prescreen: MemoryPrescreen | None, flags_of: LaunchFlags
) -> Callable[[Params], MemoryPrediction | None]:
    """What the account says before any start."""
    if prescreen is None:
        return lambda params: None
    account, device_bytes = prescreen.account, prescreen.device_bytes
    untaught = account.calibrate((), device_bytes=device_bytes)

    def foretold(params: Params) -> MemoryPrediction | None:
        try:
            return account.predict(
                flags_of(params), prescreen.inherited, device_bytes=device_bytes, calibration=untaught
            )
        except CannotPredict:
            return None

    return foretold
