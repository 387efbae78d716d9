"""Limits in milliseconds, once the baseline is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.core.errors import InputError
from optimizer.objectives.slo import Slo


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper bound that can be checked.

    Attributes:
        slo: As the user stated it.
        limit_ms: The bound in milliseconds, > 0.
        own: Whether it is a multiple of the very measurement that it is checked against: the baseline keeps 1.0 times
            itself by definition, and no test has to show it.
    """

    slo: Slo
    limit_ms: float
    own: bool = False


def resolve_limits(
    slos: Sequence[Slo], baseline_metrics: Mapping[str, float | None], *, of_baseline: bool = False
) -> tuple[Limit, ...]:
    """Turns multiples of the baseline into milliseconds.

    Args:
        slos: In the order they were given, which is kept.
        baseline_metrics: What the baseline measured; empty when it has no measurement.
        of_baseline: Whether the limits are for the baseline itself.

    Raises:
        InputError: A limit is relative, and the baseline does not tell what it is relative to.
    """
    return tuple(Limit(slo, _limit_ms(slo, baseline_metrics), own=of_baseline and slo.is_relative) for slo in slos)


def _limit_ms(slo: Slo, baseline_metrics: Mapping[str, float | None]) -> float:
    if slo.baseline_factor is None:
        if slo.limit_ms is None:
            raise ValueError(f"{slo!r} holds no bound")
        return slo.limit_ms
    measured_ms = baseline_metrics.get(slo.name)
    if measured_ms is None or measured_ms <= 0.0:
        shown = "nothing" if measured_ms is None else f"{measured_ms:g} ms"
        raise InputError(
            f"the limit '{slo}' is relative to the baseline (trial 0), which measured {shown} as {slo.name}",
            hint=f"state it in milliseconds, such as {slo.name}=800, or give a baseline that can be measured",
        )
    return slo.baseline_factor * measured_ms
