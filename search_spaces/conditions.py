"""What must hold between the parameters of a space: conditions that can be met, and one owner for each flag."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces.choices import ChoiceParameter
from optimizer.search_spaces.denied import denied_reason, gaming_reason
from optimizer.search_spaces.flag_paths import overlap
from optimizer.search_spaces.parameter import Parameter
from optimizer.search_spaces.values import same_value, shown


def check_parameters(parameters: Mapping[str, Parameter]) -> None:
    """Raises InputError for the first parameter that cannot be searched; the message begins with its dotted key."""
    for name, parameter in parameters.items():
        for flag in parameter.flag_names(name):
            reason = denied_reason(flag)
            if reason is not None:
                raise InputError(f"parameters.{name}: flag {flag} may not be searched: {reason}", hint="remove it")
        _check_values(name, parameter)
        _check_conditions(name, parameters)
    for name in parameters:
        _check_chain(name, parameters)
    _check_owners(parameters)


def _check_values(name: str, parameter: Parameter) -> None:
    for value in parameter.values if isinstance(parameter, ChoiceParameter) else ():
        for flag, setting in parameter.to_flags(name, value, device_memory_bytes=None).items():
            reason = gaming_reason(flag, setting)
            if reason is not None:
                raise InputError(
                    f"parameters.{name}: {flag} may not be {shown(setting)}: {reason}", hint="remove this choice"
                )


def depth_first(parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    """All names, each after those its conditions name; otherwise as declared."""
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        for other in parameters[name].when:
            visit(other)
        ordered.setdefault(name)

    for name in parameters:
        visit(name)
    return tuple(ordered)


def _check_conditions(name: str, parameters: Mapping[str, Parameter]) -> None:
    for other, value in parameters[name].when.items():
        key = f"parameters.{name}.when.{other}"
        if other not in parameters:
            near = difflib.get_close_matches(other, parameters, n=1)
            raise InputError(
                f"{key}: there is no parameter {other!r}",
                hint=f"did you mean {near[0]}?" if near else f"the space holds {', '.join(parameters)}",
            )
        if not parameters[other].contains(value):
            raise InputError(
                f"{key}: {shown(value)} is no value of {other}, so {name} would never exist",
                hint=f"allowed: {parameters[other].domain}",
            )


def _check_chain(name: str, parameters: Mapping[str, Parameter], below: tuple[str, ...] = ()) -> None:
    if name in below:
        circle = " -> ".join((*below[below.index(name) :], name))
        raise InputError(
            f"parameters.{name}.when: the conditions run in a circle: {circle}", hint="remove one of these conditions"
        )
    for other in parameters[name].when:
        _check_chain(other, parameters, (*below, name))


def _check_owners(parameters: Mapping[str, Parameter]) -> None:
    """No flag may be set by two parameters that can exist at once."""
    names = list(parameters)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            shared = [
                (mine, theirs)
                for mine in parameters[name].flag_names(name)
                for theirs in parameters[other].flag_names(other)
                if overlap(mine, theirs)
            ]
            if shared and not _exclude_each_other(_demands(name, parameters), _demands(other, parameters)):
                mine, theirs = shared[0]
                what = f"flag {mine} is" if mine == theirs else f"flags {mine} and {theirs} are"
                raise InputError(
                    f"parameters.{other}: {what} also set by parameter {name}",
                    hint="keep one of the two, or give them conditions that exclude each other",
                )


def _demands(name: str, parameters: Mapping[str, Parameter]) -> list[tuple[str, ParamValue]]:
    """All conditions up the chain of a parameter."""
    own = list(parameters[name].when.items())
    return own + [demand for other, _ in own for demand in _demands(other, parameters)]


def _exclude_each_other(one: list[tuple[str, ParamValue]], other: list[tuple[str, ParamValue]]) -> bool:
    return any(a == b and not same_value(left, right) for a, left in one for b, right in other)
