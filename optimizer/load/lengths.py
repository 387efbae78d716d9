"""How many tokens a prompt or an answer has: distributions with hard ends, so that the longest request is known."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


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
        return int(np.clip(round(rng.lognormal(np.log(self.median), self.sigma)), self.low, self.high))


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


LengthDistribution = Annotated[
    FixedLength | UniformLength | LognormalLength | MixtureLength, Field(discriminator="kind")
]
