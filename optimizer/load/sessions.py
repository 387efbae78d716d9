"""Conversations: how many turns they have, how long people think between them, and what each turn repeats."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optimizer.load.lengths import LengthDistribution


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FixedThinkTime(_Model):
    """Everybody thinks for the same time."""

    kind: Literal["fixed"]
    seconds: float = Field(ge=0, le=3600, description="From the end of an answer to the next turn, in seconds.")

    @property
    def mean_s(self) -> float:
        """The mean, in seconds."""
        return self.seconds

    def draw_s(self, rng: np.random.Generator) -> float:
        """One think time in seconds."""
        return self.seconds


class ExponentialThinkTime(_Model):
    """Exponential think times; a longer one than `max_s` is cut to it."""

    kind: Literal["exponential"]
    mean_s: float = Field(gt=0, le=3600, description="The mean before it is cut, in seconds.")
    max_s: float = Field(gt=0, le=36_000, description="No think time is longer, in seconds.")

    def draw_s(self, rng: np.random.Generator) -> float:
        """One think time in seconds."""
        return min(float(rng.exponential(self.mean_s)), self.max_s)


ThinkTime: TypeAlias = Annotated[FixedThinkTime | ExponentialThinkTime, Field(discriminator="kind")]


class Sessions(_Model):
    """Makes every arrival the first turn of a conversation. Each turn sends what came before, then its own prompt."""

    turns: LengthDistribution = Field(
        description="Turns of a conversation, in the words of a length: 4, 2-8, 0.5:1,0.5:6. A conversation from a "
        "file ends where the file ends it, if that is sooner."
    )
    think_time: ThinkTime = Field(
        default_factory=lambda: FixedThinkTime(kind="fixed", seconds=0.0),
        description="From the end of an answer to the next turn.",
    )
    keep_turns: int | None = Field(
        None,
        ge=0,
        description="Each turn repeats only so many earlier turns (question and answer); null repeats all of them.",
    )

    def kept(self, turn: int) -> int:
        """How many earlier turns turn number `turn` (from 0) repeats."""
        return turn if self.keep_turns is None else min(turn, self.keep_turns)
