"""How many tokens a prompt or an answer has: distributions with hard ends, so that the longest request is known.

Each has a short form beside its keys: `128` is fixed, `50-300` uniform, and `0.3:64,0.5:128,0.2:256` a mixture of
weight and length.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

LONGEST_TOKENS = 10_000_000
Tokens = Annotated[int, Field(ge=1, le=LONGEST_TOKENS)]

_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*:\s*(\d+)", re.ASCII)


class _Lengths(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FixedLength(_Lengths):
    """Every request has the same length."""

    kind: Literal["fixed"]
    tokens: Tokens = Field(description="The length, in tokens.")

    @property
    def longest_tokens(self) -> int:
        """No draw is longer than this."""
        return self.tokens

    @property
    def words(self) -> str:
        """The lengths in as few characters as tell them, for listings."""
        return f"{self.tokens}"

    def draw(self, rng: np.random.Generator) -> int:
        """One length in tokens."""
        return self.tokens


class UniformLength(_Lengths):
    """Each whole number from `low` to `high`, both included, is as likely as another."""

    kind: Literal["uniform"]
    low: Tokens = Field(description="The shortest length, in tokens.")
    high: Tokens = Field(description="The longest length, in tokens.")

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and must not exceed high, which is {self.high}")
        return self

    @property
    def longest_tokens(self) -> int:
        """No draw is longer than this."""
        return self.high

    @property
    def words(self) -> str:
        """The lengths in as few characters as tell them, for listings."""
        return f"{self.low}-{self.high}"

    def draw(self, rng: np.random.Generator) -> int:
        """One length in tokens."""
        return int(rng.integers(self.low, self.high, endpoint=True))


class LognormalLength(_Lengths):
    """Lognormal lengths, rounded; what falls outside `low`..`high` is moved to the nearer end."""

    kind: Literal["lognormal"]
    median: float = Field(gt=0, allow_inf_nan=False, description="The median before the ends are applied, in tokens.")
    sigma: float = Field(gt=0, le=5, description="Standard deviation of the natural logarithm of the length.")
    low: Tokens = Field(description="The shortest length, in tokens.")
    high: Tokens = Field(description="The longest length, in tokens.")

    @model_validator(mode="after")
    def _median_between_the_ends(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"median is {self.median:g} and must lie between low ({self.low}) and high ({self.high})")
        return self

    @property
    def longest_tokens(self) -> int:
        """No draw is longer than this."""
        return self.high

    @property
    def words(self) -> str:
        """The lengths in as few characters as tell them, for listings."""
        return f"{self.low}-{self.high} (median {self.median:g})"

    def draw(self, rng: np.random.Generator) -> int:
        """One length in tokens."""
        drawn = float(rng.lognormal(np.log(self.median), self.sigma))
        return min(max(round(drawn), self.low), self.high)


class MixturePart(_Lengths):
    """One length of a mixture and how common it is."""

    weight: float = Field(gt=0, allow_inf_nan=False, description="Share of the requests, relative to the other parts.")
    tokens: Tokens = Field(description="The length, in tokens.")


class MixtureLength(_Lengths):
    """A few lengths, each with its share of the requests."""

    kind: Literal["mixture"]
    parts: tuple[MixturePart, ...] = Field(min_length=1, description="The lengths and their weights.")

    @property
    def longest_tokens(self) -> int:
        """No draw is longer than this."""
        return max(part.tokens for part in self.parts)

    @property
    def words(self) -> str:
        """The lengths in as few characters as tell them, for listings."""
        return "/".join(str(part.tokens) for part in self.parts)

    def draw(self, rng: np.random.Generator) -> int:
        """One length in tokens."""
        weights = np.array([part.weight for part in self.parts])
        return self.parts[int(rng.choice(len(self.parts), p=weights / weights.sum()))].tokens


def _expanded(value: object) -> object:
    """The keys that a short form stands for; anything else as it is."""
    if isinstance(value, int) and not isinstance(value, bool):
        _check_length(value, str(value))
        return {"kind": "fixed", "tokens": value}
    return _read(value.strip()) if isinstance(value, str) else value


def _read(text: str) -> dict[str, object]:
    if text.isascii() and text.isdigit():
        return {"kind": "fixed", "tokens": _length(text, text)}
    if ends := _RANGE.fullmatch(text):
        low, high = _length(ends[1], text), _length(ends[2], text)
        if low > high:
            raise ValueError(f"{text!r}: the low end is above the high one")
        return {"kind": "uniform", "low": low, "high": high}
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r} is no length: write 128, 50-300, 0.3:64,0.7:128, or its keys such as kind: fixed")
    weighed = [(float(part[1]), _length(part[2], text)) for part in parts if part]
    if not all(weight > 0 for weight, _ in weighed):
        raise ValueError(f"{text!r}: a weight must be above 0")
    return {"kind": "mixture", "parts": [{"weight": weight, "tokens": tokens} for weight, tokens in weighed]}


def _length(digits: str, text: str) -> int:
    # Digits beyond these are refused before they are read: Python reads no more than some thousands.
    length = int(digits) if len(digits) <= len(str(LONGEST_TOKENS)) else LONGEST_TOKENS + 1
    _check_length(length, text)
    return length


def _check_length(length: int, text: str) -> None:
    if not 1 <= length <= LONGEST_TOKENS:
        raise ValueError(f"{text!r}: a length lies between 1 and {LONGEST_TOKENS}")


LengthDistribution: TypeAlias = Annotated[
    Annotated[FixedLength | UniformLength | LognormalLength | MixtureLength, Field(discriminator="kind")],
    BeforeValidator(_expanded),
]
