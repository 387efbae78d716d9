"""`spaces`: the built-in search spaces, and what one of them (or a space file) holds."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from optimizer.config import SpaceFile, built_in_spaces, load_space


@dataclass(frozen=True, slots=True)
class ParameterSummary:
    """One searched parameter in words.

    Attributes:
        domain: Its range or choices.
        condition: When it exists, such as `speculation=ngram`; empty when always.
    """

    name: str
    domain: str
    condition: str
    help: str


@dataclass(frozen=True, slots=True)
class SpaceSummary:
    """A search space in words; `data` is the whole file as plain JSON."""

    name: str
    description: str
    model: str
    objective: str
    slos: tuple[str, ...]
    baseline: str | None
    trials: int
    parameters: tuple[ParameterSummary, ...]
    rules: tuple[str, ...]
    fixed_flags: dict[str, JsonValue]
    data: dict[str, JsonValue]


def list_spaces() -> list[SpaceSummary]:
    """The built-in spaces, by name."""
    return [_summary(space) for space in built_in_spaces()]


def read_space(name_or_path: str) -> SpaceSummary:
    """A built-in space or a space file.

    Raises:
        InputError: There is no such space, or its file is wrong.
    """
    return _summary(load_space(name_or_path))


def _summary(space: SpaceFile) -> SpaceSummary:
    parameters = tuple(
        ParameterSummary(
            name=name,
            domain=parameter.domain,
            condition=", ".join(f"{other}={value}" for other, value in parameter.when.items()),
            help=parameter.help,
        )
        for name, parameter in space.parameters.items()
    )
    return SpaceSummary(
        name=space.name,
        description=space.description,
        model=space.model,
        objective=space.objective,
        slos=space.slos,
        baseline=space.baseline,
        trials=space.trials,
        parameters=parameters,
        rules=space.rules,
        fixed_flags=dict(space.engine.flags),
        data=space.model_dump(mode="json"),
    )
