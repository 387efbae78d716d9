"""The strategies that are compared, each through the sampler that a study uses, with or without an ingredient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.core.record import ParamValue, TrialRecord
from optimizer.engine.memory import MemoryPrediction
from optimizer.tuning.first_trials import FirstSetting, first_settings
from optimizer.tuning.greybox import GreyBox, LaunchFlags
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import misfit_of
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.strategies import strategy_named
from optimizer.tuning.strategy import Strategy
from tests.bench.search.left_out import WithoutCrashes, WithoutRepeats
from tests.bench.search.situation import Situation


@dataclass(frozen=True, slots=True)
class Setup:
    """A strategy and what it is given.

    Attributes:
        strategy: As `--sampler` names it.
        flips: Whether every third proposal is a flip.
        first: Whether the study begins with settings from knowledge.
        prescreen: Whether what cannot fit is rejected unlaunched.
        prior: Whether the grey box is the mean of the models.
        memory: Whether the model of crashes knows what the memory account foretells.
        repeats: Whether settings are measured again.
        crashes: Whether crashes are learnt from.
    """

    strategy: str
    flips: bool = True
    first: bool = True
    prescreen: bool = True
    prior: bool = True
    memory: bool = True
    repeats: bool = True
    crashes: bool = True


def _bare(strategy: str, *, prescreen: bool = False) -> Setup:
    return Setup(strategy, flips=False, first=False, prescreen=prescreen, prior=False, memory=False)


SETUPS: Mapping[str, Setup] = {
    "random": _bare("random"),
    "tpe": _bare("tpe"),
    "optuna-gp": _bare("optuna-gp"),
    "grid": _bare("grid", prescreen=True),
    "one-at-a-time": _bare("one-at-a-time", prescreen=True),
    "tpe+recipe": Setup("tpe"),
    "optuna-gp+recipe": Setup("optuna-gp"),
    "botorch": Setup("botorch", flips=False, prior=False, memory=False),
    "gp": Setup("gp"),
    "gp/no-flips": Setup("gp", flips=False),
    "gp/no-first": Setup("gp", first=False),
    "gp/no-prescreen": Setup("gp", prescreen=False),
    "gp/no-prior": Setup("gp", prior=False),
    "gp/no-memory": Setup("gp", memory=False),
    "gp/no-repeats": Setup("gp", repeats=False),
    "gp/no-crashes": Setup("gp", crashes=False),
    "gp/bare": _bare("gp"),
}
"""`random`, `tpe` and `optuna-gp` are Optuna's, told of crashes as violated constraints and kept to the rules.

`grid` and `one-at-a-time` are the product's, pre-screen included; `+recipe` adds all else that the product does.
"""


def make_search(
    situation: Situation, setup: Setup, records: Callable[[], Sequence[TrialRecord]], *, seed: int
) -> OptunaSearch:
    """The search of one study in memory."""
    sampler = RuleKeepingSampler(
        situation.space,
        situation.broken_rules,
        fixed={0: situation.baseline, 1: {}},
        seed=seed,
        prescreen=(lambda: lambda params: misfit_of(predicted(situation, params))) if setup.prescreen else None,
        strategy=_with_all_but(setup, _strategy(situation, setup)),
        records=records,
        first=_first(situation) if setup.first else (),
        flips=setup.flips,
        flags_of=situation.flags,
    )
    return OptunaSearch(
        None, f"{situation.key}-{seed}", metric=situation.metric, maximise=situation.maximise, sampler=sampler
    )


def predicted(situation: Situation, params: Mapping[str, ParamValue]) -> MemoryPrediction:
    """What the account, wrong as it is, foretells of a launch."""
    return situation.account.predict(situation.engine.footprint(situation.flags(params)))


def prior_of(situation: Situation, setup: Setup) -> GreyBox | None:
    """The grey box, where the setup has it."""
    if not setup.prior:
        return None
    flags_of = LaunchFlags(situation.space, {}, device_memory_bytes=situation.facts.device_bytes)
    return GreyBox(situation.facts, flags_of, metric=situation.metric, maximise=situation.maximise)


def _strategy(situation: Situation, setup: Setup) -> Strategy:
    if setup.strategy == "botorch":
        from tests.bench.search.botorch_strategy import BoTorchStrategy

        return BoTorchStrategy(situation.space)
    return strategy_named(
        setup.strategy,
        situation.space,
        prior=prior_of(situation, setup),
        memory_of=(lambda params: predicted(situation, params)) if setup.memory else None,
    )


def _with_all_but(setup: Setup, strategy: Strategy) -> Strategy:
    if not setup.repeats:
        strategy = WithoutRepeats(strategy)
    return strategy if setup.crashes else WithoutCrashes(strategy)


def _first(situation: Situation) -> list[FirstSetting]:
    return first_settings(
        situation.space,
        situation.facts,
        situation.baseline,
        accepts=lambda params: not situation.broken_rules(params) and misfit_of(predicted(situation, params)) is None,
        pool_tokens=lambda params: predicted(situation, params).pool_tokens.mid,
    )
