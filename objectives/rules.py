"""How sure a verdict must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VerdictRules:
    """What the user asks of every verdict; docs/verdict.md tells what it costs in requests.

    Attributes:
        level: Largest chance of a wrong FEASIBLE, and of a wrong INFEASIBLE, of each limit; between 0 and 0.5.
        tolerance: Relative distance from a limit within which either verdict is right; 0 is strict, below 1.
        error_rate: Largest share of requests that may fail, whatever the limits; between 0 and 1.
    """

    level: float = 0.05
    tolerance: float = 0.05
    error_rate: float = 0.01

    @property
    def confidence(self) -> float:
        """Two-sided confidence of the intervals that are printed: each end errs with `level`."""
        return round(1.0 - 2.0 * self.level, 12)


USUAL_RULES = VerdictRules()
"""Where the user asks for nothing else."""
