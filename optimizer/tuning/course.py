"""The course of one ask: what was drawn and turned down, and what is recorded of the proposal that it ends in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from optimizer.tuning.strategy import Ask, Params

MAX_REJECTS = 64
"""Proposals of one ask that may be rejected for want of memory before the nearest one that fits is taken."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is recorded of a proposal beside its values.

    Attributes:
        why: Which kind of proposal it is; None of those that are not drawn.
        rejects: How many were rejected before it, and why; None when none was.
        expected_gain: What the strategy expects it to bring over the best so far, as a share of it; None where the
            strategy did not propose it or does not say.
    """

    why: str | None = None
    rejects: str | None = None
    expected_gain: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """For the record of the trial."""
        return tuple(note for note in (self.why, self.rejects) if note is not None)


@dataclass(slots=True)
class Course:
    """One ask under way.

    Attributes:
        filler: A value for each parameter that a proposal may leave open.
        rng: For what is drawn beside the strategy.
        broken_by_draw: The rules that each draw broke.
        nearest_taken: Whether what is proposed is the nearest setting that fits.
    """

    ask: Ask
    filler: Params
    rng: np.random.Generator
    broken_by_draw: list[tuple[str, ...]] = field(default_factory=list)
    nearest_taken: bool = False

    @property
    def is_rejecting(self) -> bool:
        """Whether as many were rejected as one ask may take."""
        return len(self.ask.rejected) >= MAX_REJECTS

    @property
    def rejects(self) -> str | None:
        """For the record of the trial that was launched instead."""
        if not self.ask.rejected:
            return None
        count = len(self.ask.rejected)
        noun = "1 proposal before this one was" if count == 1 else f"{count} proposals before this one were"
        nearest_fit = "; this is the nearest setting that fits" if self.nearest_taken else ""
        return f"{noun} rejected unlaunched: {self.ask.rejected[-1][1].reason}{nearest_fit}"
