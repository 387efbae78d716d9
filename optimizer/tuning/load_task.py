"""One load run on the engine of an attempt, which may be one of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optimizer.core.measurement import LoadResult
from optimizer.core.stop_reason import StopReason
from optimizer.load import RequestPlan, Workload


@dataclass(frozen=True, slots=True)
class LoadTask:
    """What is sent and when it may end.

    Attributes:
        workload: The traffic.
        plan: Its requests.
        stop_when: Asked once a second whether it may stop; None measures the shortest window.
        files: What the names of its files begin with.
    """

    workload: Workload
    plan: RequestPlan
    stop_when: Callable[[LoadResult], StopReason | None] | None
    files: str = ""


def level_files(number: int) -> str:
    """What the names of the files of one load run of several begin with."""
    return f"level-{number}-"
