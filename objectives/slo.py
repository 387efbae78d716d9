"""Limits as people state them: `p99_e2e_ms=800`, `p99_ttft_ms<=250`, `p99_e2e<=1.0x` (times the baseline's own)."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.core.errors import InputError

LATENCY_METRICS = ("e2e", "ttft", "tpot", "itl")
"""What a limit may be set on: end to end, to first token, per output token, between tokens."""

RECORDED_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99.9")
"""What every measurement's metrics hold of each latency, and so what a relative limit can refer to."""

_SHAPE = re.compile(r"(?P<left>[^<>=!\s]+)\s*(?P<sign><=|>=|==|!=|=|<|>)\s*(?P<right>\S+)")
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")
_GRAMMAR = (
    "write METRIC=MILLISECONDS or METRIC<=FACTORx, such as p99_e2e_ms=800 or p99_e2e<=1.0x (times the baseline); "
    "the statistic is mean or p50, p99, p99.9; the metric is e2e, ttft, tpot or itl"
)


@dataclass(frozen=True, slots=True)
class Slo:
    """An upper bound on one statistic of one latency.

    Attributes:
        metric: `e2e`, `ttft`, `tpot` or `itl`.
        percent: The percentile, 0 < percent < 100, or None for the mean.
        limit_ms: The bound in milliseconds; None when it is relative.
        baseline_factor: The bound as a multiple of what the baseline measured; None when it is absolute.
    """

    metric: str
    percent: float | None
    limit_ms: float | None = None
    baseline_factor: float | None = None

    @property
    def statistic(self) -> str:
        """`mean`, or the percentile as people write it: `p99`, `p99.9`."""
        return "mean" if self.percent is None else f"p{_plain(self.percent)}"

    @property
    def name(self) -> str:
        """The limited metric, such as `p99_e2e_ms`."""
        return f"{self.statistic}_{self.metric}_ms"

    @property
    def is_relative(self) -> bool:
        """True when the bound is known only after the baseline was measured."""
        return self.baseline_factor is not None

    def __str__(self) -> str:
        """The limit in a form that `parse_slo` reads back as an equal one."""
        if self.baseline_factor is not None:
            return f"{self.statistic}_{self.metric}<={_plain(self.baseline_factor)}x"
        return f"{self.name}<={_plain(self.limit_ms or 0.0)}"


def _plain(number: float) -> str:
    """The shortest decimal, without exponent, that reads back as the same number."""
    return np.format_float_positional(number, trim="-")


def parse_slo(text: str, *, origin: str) -> Slo:
    """Reads one limit.

    Args:
        text: Such as `p99_e2e_ms=800` or `p99_e2e<=1.0x`.
        origin: Where it came from, for messages: an option, or a file and key.

    Raises:
        InputError: The text is no limit, names an unknown metric, or its value is no upper bound above zero.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} ({origin}) is not a limit", hint=_GRAMMAR)
    if match["sign"] not in ("=", "<="):
        raise InputError(
            f"{text!r} ({origin}) uses {match['sign']!r}, but a limit on a latency is an upper bound",
            hint=f"use '=' or '<=': {match['left']}<={match['right']}",
        )
    percent, metric, has_unit = _parse_metric(match["left"], text, origin)
    number, relative = _parse_bound(match["right"], text, origin)
    if relative:
        if has_unit:
            raise InputError(
                f"{text!r} ({origin}) gives a factor of the baseline, which has no unit",
                hint=f"write {match['left'].removesuffix('_ms')}<={match['right']}, or a number of milliseconds",
            )
        slo = Slo(metric, percent, baseline_factor=number)
        if slo.statistic not in RECORDED_STATISTICS:
            raise InputError(
                f"{text!r} ({origin}) refers to the baseline's {slo.statistic}, which is not recorded",
                hint=f"relative limits take {', '.join(RECORDED_STATISTICS)}; or give milliseconds",
            )
        return slo
    if not has_unit:
        raise InputError(
            f"{text!r} ({origin}) has a limit without a unit",
            hint=f"write {match['left']}_ms={match['right']} for milliseconds, "
            f"or {match['left']}<={match['right']}x for a multiple of the baseline",
        )
    return Slo(metric, percent, limit_ms=number)


def _parse_metric(left: str, text: str, origin: str) -> tuple[float | None, str, bool]:
    """Statistic (a percentile, or None for the mean), latency, and whether `_ms` was written."""
    has_unit = left.endswith("_ms")
    statistic, _, metric = left.removesuffix("_ms").partition("_")
    percentile = _PERCENTILE.fullmatch(statistic)
    if metric not in LATENCY_METRICS or (percentile is None and statistic != "mean"):
        known = [f"{stat}_{name}_ms" for stat in ("p99", "mean", "p90", "p50", "p99.9") for name in LATENCY_METRICS]
        near = difflib.get_close_matches(left, known, n=1, cutoff=0.5)
        raise InputError(
            f"{text!r} ({origin}) limits {left!r}, which is no statistic of a latency",
            hint=f"did you mean {near[0]}?" if near else _GRAMMAR,
        )
    if percentile is None:
        return None, metric, has_unit
    percent = float(percentile[1])
    if not 0.0 < percent < 100.0:
        raise InputError(
            f"{text!r} ({origin}) asks for percentile {percentile[1]}, which does not lie between 0 and 100",
            hint="p99 is the 99th percentile; p99.9 is possible with enough requests",
        )
    return percent, metric, has_unit


def _parse_bound(right: str, text: str, origin: str) -> tuple[float, bool]:
    """The number, and whether it is a multiple of the baseline."""
    relative = right[-1:] in "xX"
    try:
        number = float(right[:-1] if relative else right)
    except ValueError:
        raise InputError(f"{text!r} ({origin}): {right!r} is not a number", hint=_GRAMMAR) from None
    if not math.isfinite(number) or number <= 0.0:
        raise InputError(
            f"{text!r} ({origin}): the limit is {right} and must be a finite number above zero", hint=_GRAMMAR
        )
    return number, relative


def check_slos(slos: Sequence[Slo], *, origin: str) -> None:
    """Refuses two limits on the same statistic of the same latency: one of them contradicts or repeats the other.

    Limits on different percentiles never contradict: of two upper bounds the tighter one rules.

    Raises:
        InputError: Two limits are on the same statistic; both are named.
    """
    seen: dict[str, Slo] = {}
    for slo in slos:
        other = seen.setdefault(slo.name, slo)
        if other is not slo:
            what = "repeat each other" if other == slo else "contradict each other"
            raise InputError(
                f"the limits '{other}' and '{slo}' ({origin}) {what}: both are on {slo.name}", hint="keep one of them"
            )
