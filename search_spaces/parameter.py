"""The parameters a space may hold."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from optimizer.search_spaces.choices import BoolParameter, ChoiceParameter
from optimizer.search_spaces.ranges import FloatParameter, IntParameter

Parameter: TypeAlias = Annotated[
    IntParameter | FloatParameter | ChoiceParameter | BoolParameter, Field(discriminator="kind")
]
"""One searched parameter; `kind` tells which."""
