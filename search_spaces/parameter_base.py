"""What all parameters share: the flag they set, when they exist, and how a value becomes a flag and back."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from optimizer.core.engine_config import FlagValue, canonical_flag
from optimizer.core.record import ParamValue
from optimizer.search_spaces.flag_paths import get_flag
from optimizer.search_spaces.values import Scalar


class Unread(enum.Enum):
    """Why no value of a parameter could be read from flags."""

    ABSENT = "absent"
    """Its flag is not set."""
    OUTSIDE = "outside"
    """Its flag is set to something that the parameter does not range over."""


class ParameterBase(BaseModel, ABC):
    """What every parameter has: the flag it sets, and the condition under which it exists."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    flag: str | None = Field(
        default=None, description="vLLM flag it sets; its own name by default. `a.b` sets key b in the JSON of flag a."
    )
    when: dict[str, Scalar] = Field(
        default_factory=dict, description="The parameter exists only where these other parameters have these values."
    )
    help: str = Field(default="", description="What the parameter does, for people.")

    def flag_names(self, name: str) -> tuple[str, ...]:
        """The dotted flags that the parameter of this name may set."""
        return (canonical_flag(self.flag or name),)

    @abstractmethod
    def contains(self, value: ParamValue) -> bool:
        """Whether the parameter ranges over the value."""

    @property
    @abstractmethod
    def domain(self) -> str:
        """What it ranges over, in words for messages."""

    def to_flags(self, name: str, value: ParamValue, *, device_memory_bytes: int | None) -> dict[str, FlagValue]:
        """Dotted flag to value for one value that the parameter contains."""
        return {self.flag_names(name)[0]: value}

    def read(
        self, name: str, flags: Mapping[str, FlagValue], *, device_memory_bytes: int | None
    ) -> ParamValue | Unread:
        """The value that these flags give the parameter: the reverse of `to_flags`."""
        setting = get_flag(flags, self.flag_names(name)[0])
        if setting is None:
            return Unread.ABSENT
        if isinstance(setting, list | dict) or not self.contains(setting):
            return Unread.OUTSIDE
        return setting
