"""Values of parameters: what counts as one, and when two are the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator

from optimizer.core.record import ParamValue


class FieldProblem(ValueError):
    """A wrong value found while a whole model was checked, with the key inside the model that holds it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def check_scalar(value: object) -> ParamValue:
    """The value itself when it is text, a number, or true or false.

    Raises:
        ValueError: It is anything else.
    """
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} must be text, a number, or true or false")


Scalar = Annotated[ParamValue, PlainValidator(check_scalar)]
"""A parameter's value as a field of a boundary model; its type is kept as it was written."""


def same_value(one: object, other: object) -> bool:
    """Equality that keeps truth values and numbers apart: True is not 1, but 1 is 1.0."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def shown(value: object) -> str:
    """A value as YAML would spell it, for messages."""
    return str(value).lower() if isinstance(value, bool) else str(value)
