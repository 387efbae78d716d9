"""How far a measurement is, for whoever watches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far the window is.

    Attributes:
        done_requests: Counted requests that have ended.
        elapsed_s: Time since it opened.
        window_s: How long it will be, as far as one can tell now.
    """

    done_requests: int
    elapsed_s: float
    window_s: float


def ignore(*_: object) -> None:
    """Stands in where the caller does not listen."""
