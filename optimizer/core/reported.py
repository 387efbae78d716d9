"""Figures that somebody else measured: values, and how sure each is, instead of the requests behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReportedMetrics:
    """What an external evaluator says of one setting.

    Attributes:
        values: Metric name to value, finite and not below 0; a metric that it does not know is not there.
        standard_errors: Of some of these, the standard error in the metric's own unit, finite and not below 0.
    """

    values: Mapping[str, float]
    standard_errors: Mapping[str, float] = field(default_factory=dict)
