"""Our parameters as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Parameter

_SIGNIFICANT_DIGITS = 12


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """The distribution that holds exactly the parameter's values."""
    match parameter:
        case IntParameter():
            return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case FloatParameter():
            return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case ChoiceParameter() | BoolParameter():
            return CategoricalDistribution(parameter.values)


def distributions_of(parameters: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    """All of them, in the order of declaration."""
    return {name: distribution_of(parameter) for name, parameter in parameters.items()}


def suggest(trial: Trial, name: str, parameter: Parameter) -> ParamValue:
    """Have Optuna record the value that the trial's proposal holds for a parameter."""
    value: ParamValue | None
    match parameter:
        case IntParameter():
            value = trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case FloatParameter():
            value = trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case ChoiceParameter() | BoolParameter():
            value = trial.suggest_categorical(name, parameter.values)
    return _present(value)


def _present(value: ParamValue | None) -> ParamValue:
    """Optuna allows None as a choice; our spaces do not."""
    if value is None:
        raise TypeError("a searched parameter has no value")
    return value


def tidy(value: ParamValue, distribution: BaseDistribution) -> ParamValue:
    """A value as a person would write it: stepped floats come with a tail of binary noise (0.30000000000000004)."""
    if not isinstance(distribution, FloatDistribution):
        return value
    rounded = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return min(max(rounded, distribution.low), distribution.high)
