"""Whether the engine took the memory that the trial declares."""

from __future__ import annotations

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.trial import Stage
from optimizer.engine.launch import EngineFailed
from optimizer.engine.vllm.startup_log import StartupFacts

_TOLERANCE = 0.08
"""A virtual machine's memory was seen to grow by 6 % during one start; the record holds the pool as it came."""


def check_memory(startup: StartupFacts, expected_gib: float | None) -> None:
    """Refuse an engine that took another share of memory than the trial declares.

    vLLM takes a fraction of the memory that it finds at its start; on a virtual machine whose memory is plugged in as
    it is used, that total may have grown since we turned GiB into a fraction.

    Raises:
        EngineFailed: It did; the host is to blame.
    """
    got = startup.requested_memory_gib
    if expected_gib is None or got is None or abs(got - expected_gib) <= _TOLERANCE * expected_gib + 0.01:
        return
    raise EngineFailed(
        Failure(
            kind=FailureKind.HOST_FAULT,
            stage=Stage.LAUNCHING,
            blame=Blame.HOST,
            detail=f"the engine took {got:.2f} GiB of memory where {expected_gib:.2f} GiB were declared: "
            "this host's total changed meanwhile",
            retryable=True,
        )
    )
