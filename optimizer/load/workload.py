"""What traffic is sent: how requests arrive, how long they are, what they share, and how long one looks.

A `Workload` is a boundary model: it is read from space files and kept in the record of a study. It holds no seed; the
study's seed makes it concrete (see `load.requests`).
"""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from optimizer.load.lengths import LengthDistribution


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClosedLoop(_Model):
    """A fixed number of users, each of whom sends the next request when the last one has ended."""

    kind: Literal["closed_loop"]
    in_flight: int = Field(ge=1, le=10_000, description="Requests under way at any time.")


ArrivalProcess: TypeAlias = ClosedLoop
"""How requests arrive, told apart by `kind`."""


class PrefixSharing(_Model):
    """Beginnings that many requests have in common, such as system prompts."""

    prefixes: int = Field(ge=1, le=10_000, description="How many different beginnings there are; all equally common.")
    tokens: int = Field(ge=1, description="Length of each beginning, in tokens.")


class WarmUp(_Model):
    """What is sent before anything is measured."""

    requests: int = Field(ge=1, description="Warm-up requests; raised to one per shared prefix where there are more.")
    max_s: float = Field(
        gt=0, allow_inf_nan=False, description="Longest time for the warm-up requests, and again for the ramp, in s."
    )


class Window(_Model):
    """How long one measures: until both minima are reached, but never beyond `max_s`."""

    min_s: float = Field(gt=0, allow_inf_nan=False, description="Shortest window, in seconds.")
    max_s: float = Field(gt=0, allow_inf_nan=False, description="Longest window, in seconds.")
    min_requests: int = Field(ge=1, description="Requests that begin in the window and end before it may close.")

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s is {self.min_s:g} and must not exceed max_s, which is {self.max_s:g}")
        return self


class Workload(_Model):
    """The traffic of a study. Each request is a shared prefix (if any), then tokens of its own, then its answer."""

    name: str = Field(min_length=1, description="How people call it.")
    endpoint: Literal["completions"] = Field("completions", description="Which API of the engine is loaded.")
    arrivals: ArrivalProcess = Field(description="How requests arrive.")
    prompt_tokens: LengthDistribution = Field(description="Tokens of a prompt after the shared prefix.")
    output_tokens: LengthDistribution = Field(description="Tokens that each answer has, exactly.")
    shared_prefix: PrefixSharing | None = Field(None, description="Beginnings that requests share, or null.")
    warmup: WarmUp = Field(description="What is sent before the window.")
    window: Window = Field(description="How long one measures.")

    @property
    def longest_prompt_tokens(self) -> int:
        """The longest prompt that can be sent, shared prefix included."""
        shared = 0 if self.shared_prefix is None else self.shared_prefix.tokens
        return shared + self.prompt_tokens.longest_tokens

    @property
    def longest_request_tokens(self) -> int:
        """Longest prompt plus longest answer: the engine's context cap must not be smaller."""
        return self.longest_prompt_tokens + self.output_tokens.longest_tokens
