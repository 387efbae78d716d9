"""Runs that the load generator spoiled: the host is to blame, and the trial is tried again with more load processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.measurement import LoadResult
from optimizer.core.scoring import Verdict
from optimizer.core.trial import Stage
from optimizer.load.failure import ClientSpoiled
from optimizer.objectives import Slo, resolve_limits
from optimizer.objectives.score import check_limit
from optimizer.tuning.aim import Aim

MOST_PROCESSES = 4
"""One process, then two, then four; a host on which four cannot keep up is not the one to measure from."""


def doubled(processes: int) -> int:
    """How many load processes a run gets after one that so many spoiled."""
    return min(2 * processes, MOST_PROCESSES)


def more_processes(failure: Failure, processes: int) -> int:
    """How many load processes the attempt after this failure gets."""
    return doubled(processes) if failure.kind is FailureKind.CLIENT_SPOILED else processes


def why_spoiled(load: LoadResult, limit_ms: float | None, aim: Aim | None = None) -> str | None:
    """Why the client's own delays leave a run open; None where it kept up.

    Args:
        load: What was measured.
        limit_ms: The tightest limit on a latency, or None.
        aim: What was asked of the run; a limit that is broken even by what is left without the client's delay tells
            enough of the setting.
    """
    why = None if load.client is None else load.client.spoiled(limit_ms)
    return None if why is None or _is_broken_all_the_same(load, aim) else why


def check_client(load: LoadResult, limit_ms: float | None, aim: Aim | None = None) -> None:
    """As `why_spoiled`, for those whom it stops.

    Raises:
        ClientSpoiled: The client did not keep up.
    """
    why = why_spoiled(load, limit_ms, aim)
    if why is not None:
        raise ClientSpoiled(why)


def _is_broken_all_the_same(load: LoadResult, aim: Aim | None) -> bool:
    if aim is None or load.client is None:
        return False
    late_ms = max(load.client.lag_p99_ms or 0.0, load.client.lateness_p99_ms or 0.0)
    relieved = (replace(limit, limit_ms=limit.limit_ms + late_ms) for limit in aim.limits)
    return any(check_limit(limit, load, aim.rules).verdict is Verdict.INFEASIBLE for limit in relieved)


def tightest_limit_ms(slos: Sequence[Slo], baseline_metrics: Mapping[str, float | None]) -> float | None:
    """The least of the limits on latencies, as far as they are known: multiples of a baseline need its measurement."""
    known = [slo for slo in slos if not slo.is_relative or (baseline_metrics.get(slo.name) or 0.0) > 0.0]
    return min((limit.limit_ms for limit in resolve_limits(known, baseline_metrics)), default=None)


def client_failure(trouble: ClientSpoiled, stage: Stage) -> Failure:
    """The failure of an attempt that the client spoiled."""
    return Failure(
        kind=FailureKind.CLIENT_SPOILED,
        stage=stage,
        blame=Blame.HOST,
        detail=trouble.message,
        evidence=trouble.evidence,
        retryable=True,
    )
