"""A strategy without something that it does by itself, through the seam alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from optimizer.tuning.strategy import Ask, Params, Strategy


@dataclass(frozen=True, slots=True)
class WithoutRepeats:
    """Never measures a setting again."""

    inner: Strategy

    @property
    def name(self) -> str:
        """The inner one's."""
        return self.inner.name

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """The inner one's, without those that were tried."""
        tried = [dict(trial.params) for trial in ask.history]
        return (params for params in self.inner.proposals(ask) if params not in tried)


@dataclass(frozen=True, slots=True)
class WithoutCrashes:
    """Learns nothing from a crash but not to launch the same setting again."""

    inner: Strategy

    @property
    def name(self) -> str:
        """The inner one's."""
        return self.inner.name

    def proposals(self, ask: Ask) -> Iterator[Params]:
        """What the inner one proposes who saw no crash, without settings that crashed."""
        crashed = [dict(trial.params) for trial in ask.history if trial.crash is not None]
        served = tuple(trial for trial in ask.history if trial.crash is None)
        return (p for p in self.inner.proposals(replace(ask, history=served)) if p not in crashed)
