"""How requests arrive: by users who wait for their answers, or at times of their own.

A closed loop slows down with the engine. In an open loop requests come whether or not the engine keeps up, so that a
queue can build; with `max_in_flight` they wait at the client, and that wait is part of their latency.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

InFlight = Annotated[int, Field(ge=1, le=10_000)]
Rate = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


class _Arrivals(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClosedLoop(_Arrivals):
    """A fixed number of users, each of whom sends the next request when the last one has ended."""

    kind: Literal["closed_loop"]
    in_flight: InFlight = Field(description="Requests under way at any time.")

    @property
    def most_in_flight(self) -> int:
        """No more requests than these are under way at a time."""
        return self.in_flight

    @property
    def words(self) -> str:
        """The arrivals in a few words, for listings."""
        return f"{self.in_flight} requests in flight"


class _OpenLoop(_Arrivals):
    """What all arrivals at times of their own have in common."""

    max_in_flight: InFlight | None = Field(
        None, description="Requests under way at most; later ones wait, and the wait counts. Null sets no limit."
    )

    @property
    def most_in_flight(self) -> int | None:
        """No more requests than these are under way at a time; None when there is no limit."""
        return self.max_in_flight

    def _capped(self, words: str) -> str:
        return words if self.max_in_flight is None else f"{words}, at most {self.max_in_flight} in flight"


class ConstantRate(_OpenLoop):
    """Arrivals with equal gaps."""

    kind: Literal["constant"]
    rate_per_s: Rate = Field(description="Requests per second.")

    @property
    def words(self) -> str:
        """The arrivals in a few words, for listings."""
        return self._capped(f"{self.rate_per_s:g} requests/s at equal gaps")


class PoissonArrivals(_OpenLoop):
    """Arrivals that know nothing of each other: exponential gaps."""

    kind: Literal["poisson"]
    rate_per_s: Rate = Field(description="Requests per second, on average.")

    @property
    def words(self) -> str:
        """The arrivals in a few words, for listings."""
        return self._capped(f"{self.rate_per_s:g} requests/s (Poisson)")


class GammaArrivals(_OpenLoop):
    """Gamma-distributed gaps of shape `burstiness`: below 1 arrivals cluster, 1 is Poisson, above 1 they even out."""

    kind: Literal["gamma"]
    rate_per_s: Rate = Field(description="Requests per second, on average.")
    burstiness: float = Field(
        gt=0, le=1000, allow_inf_nan=False, description="Shape of the gaps; their squared variation is 1/burstiness."
    )

    @property
    def words(self) -> str:
        """The arrivals in a few words, for listings."""
        return self._capped(f"{self.rate_per_s:g} requests/s (gamma, burstiness {self.burstiness:g})")


class RampArrivals(_OpenLoop):
    """Poisson arrivals whose rate moves evenly from one value to another, and stays there."""

    kind: Literal["ramp"]
    from_rate_per_s: Rate = Field(description="Requests per second at the start of the window.")
    to_rate_per_s: Rate = Field(description="Requests per second at the end of the ramp, and after it.")
    over_s: float = Field(gt=0, allow_inf_nan=False, description="Length of the ramp, in seconds.")

    @property
    def words(self) -> str:
        """The arrivals in a few words, for listings."""
        return self._capped(f"{self.from_rate_per_s:g} to {self.to_rate_per_s:g} requests/s over {self.over_s:g} s")


class TraceArrivals(_OpenLoop):
    """Arrivals at the recorded times of a `trace` source, from its first row on."""

    kind: Literal["trace"]
    speed: float = Field(1.0, gt=0, le=1e6, allow_inf_nan=False, description="2 plays it in half the time.")

    @property
    def words(self) -> str:
        """The arrivals in a few words, for listings."""
        return self._capped("as recorded" if self.speed == 1 else f"as recorded, {self.speed:g} times as fast")


ArrivalProcess: TypeAlias = Annotated[
    ClosedLoop | ConstantRate | PoissonArrivals | GammaArrivals | RampArrivals | TraceArrivals,
    Field(discriminator="kind"),
]
"""How requests arrive, told apart by `kind`."""


class Window(_Arrivals):
    """How long one measures: until both minima are reached, but never beyond `max_s` or `max_requests`."""

    min_s: float = Field(gt=0, allow_inf_nan=False, description="Shortest window, in seconds.")
    max_s: float = Field(gt=0, allow_inf_nan=False, description="Longest window, in seconds.")
    min_requests: int = Field(ge=1, description="Requests that begin in the window and end before it may close.")
    max_requests: int | None = Field(
        None, ge=1, description="Requests after which it closes although no verdict is reached; null sets no limit."
    )

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s is {self.min_s:g} and must not exceed max_s, which is {self.max_s:g}")
        if self.max_requests is not None and self.min_requests > self.max_requests:
            raise ValueError(
                f"min_requests is {self.min_requests} and must not exceed max_requests, which is {self.max_requests}"
            )
        return self
