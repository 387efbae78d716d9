"""Every flag that a study would launch its engines with, held against the engine before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from optimizer.config.flag_check import FlagChecker, FlagProblem
from optimizer.config.space_file import SpaceFile
from optimizer.config.study_config import parse_setting
from optimizer.core.engine_config import FlagValue
from optimizer.core.record import ParamValue
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Parameter


def study_flag_problems(
    checker: FlagChecker, space: SpaceFile, *, baseline: str | None = None, set_flags: tuple[str, ...] = ()
) -> list[FlagProblem]:
    """Problems of all parameters with the ends of their ranges, of fixed flags, of variables, and of the baseline.

    Args:
        checker: Knows the engine's flags.
        space: The space file.
        baseline: The serve command of `--baseline`, in place of the file's.
        set_flags: `flag=value` of each `--set`.

    Raises:
        InputError: The baseline is no serve command, or a `--set` is no setting.
    """
    problems: dict[FlagProblem, None] = {}
    for name, parameter in space.parameters.items():
        for flag, value in _settings(name, parameter):
            problems |= dict.fromkeys(checker.setting(flag, value, where=f"{space.origin}: parameters.{name}"))
    for flag, setting in space.engine.flags.items():
        if setting is not None:
            problems |= dict.fromkeys(checker.setting(flag, setting, where=f"{space.origin}: engine.flags"))
    problems |= dict.fromkeys(checker.variables(space.engine.env, where=f"{space.origin}: engine.env"))
    for text in set_flags:
        flag, value = parse_setting(text)
        problems |= dict.fromkeys(checker.setting(flag, value, where="--set"))
    command, where = (space.baseline, f"{space.origin}: baseline") if baseline is None else (baseline, "--baseline")
    if command is not None:
        problems |= dict.fromkeys(checker.command(command, where=where))
    return list(problems)


def _settings(name: str, parameter: Parameter) -> Iterator[tuple[str, FlagValue]]:
    """Dotted flag and value at every choice and both ends of a range. GiB become a fraction of unknown size."""
    for value in _extremes(parameter):
        if isinstance(parameter, FloatParameter) and parameter.unit is not None:
            yield parameter.flag_names(name)[0], 0.5
            return
        yield from parameter.to_flags(name, value, device_memory_bytes=None).items()


def _extremes(parameter: Parameter) -> tuple[ParamValue, ...]:
    match parameter:
        case IntParameter() | FloatParameter():
            return parameter.low, parameter.high
        case ChoiceParameter():
            return parameter.values
        case BoolParameter():
            return True, False
