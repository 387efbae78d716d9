"""Why a load run went no further."""

from __future__ import annotations

import enum


class StopReason(enum.StrEnum):
    """Why the window closed. After the first four the load goes on until every counted request has ended."""

    WINDOW = "window"
    """The shortest window was over, and no verdict was asked for."""
    DECIDED = "decided"
    """Every limit is decided."""
    BUDGET = "budget"
    """The longest window, or its largest number of requests, came first."""
    FAILURES = "failures"
    """Nothing but failures came any more."""
    HOPELESS = "hopeless"
    """A limit cannot hold any more."""
    DOMINATED = "dominated"
    """The best trial so far cannot be beaten any more."""
    SATURATED = "saturated"
    """More comes than the engine can serve: requests in flight and TTFT climb."""

    @property
    def ends_at_once(self) -> bool:
        """Whether the load ends there and then, and requests under way are given up."""
        return self in (StopReason.HOPELESS, StopReason.DOMINATED, StopReason.SATURATED)
