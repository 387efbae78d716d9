"""From a trial's role and parameters to what is launched, on this host, right now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.record import ParamValue
from optimizer.core.trial import TrialRole
from optimizer.search_spaces import BUILT_IN_RULES, GIB, SearchSpace

MEMORY_FLAG = "gpu-memory-utilization"

BASELINE_NUMBER = 0
DEFAULT_NUMBER = 1


def role_of(number: int) -> TrialRole:
    """Trial 0 is the baseline, trial 1 sets no searched flag, the others are the search's."""
    return {BASELINE_NUMBER: TrialRole.BASELINE, DEFAULT_NUMBER: TrialRole.DEFAULT}.get(number, TrialRole.SEARCH)


class Resolver(Protocol):
    """Puts configs together; the study's configuration does."""

    @property
    def space(self) -> SearchSpace:
        """What is searched."""

    def resolve(self, params: Mapping[str, ParamValue], *, device_memory_bytes: int | None) -> EngineConfig:
        """The engine for a proposal; without params it is vLLM's defaults under the fixed flags."""

    def baseline_config(self, *, device_memory_bytes: int | None) -> EngineConfig:
        """The engine as the user runs it today."""

    def baseline_params(self, *, device_memory_bytes: int | None) -> tuple[dict[str, ParamValue], tuple[str, ...]]:
        """The baseline as parameters of the space, and the names of those that it sets outside their range."""


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """What a trial launches, and the memory in GiB behind its fraction; None where memory is not declared in GiB."""

    config: EngineConfig
    memory_gib: float | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The study's configuration on this host.

    Attributes:
        resolver: Puts configs together.
        device_memory_bytes: Reads the memory that vLLM takes its fraction of; None where no GiB are declared.
    """

    resolver: Resolver
    device_memory_bytes: Callable[[], int] | None = None

    def resolve(self, role: TrialRole, params: Mapping[str, ParamValue]) -> ResolvedConfig:
        """What a trial launches, its memory a fraction of what the host has at this moment."""
        total = self._total_bytes()
        if role is TrialRole.BASELINE:
            config = self.resolver.baseline_config(device_memory_bytes=total)
        else:
            config = self.resolver.resolve(params, device_memory_bytes=total)
        fraction = config.flags.get(MEMORY_FLAG)
        if total is None or not isinstance(fraction, int | float):
            return ResolvedConfig(config, None)
        return ResolvedConfig(config, fraction * total / GIB)

    def broken_rules(self, params: Mapping[str, ParamValue]) -> tuple[str, ...]:
        """The rules that a proposal breaks, vLLM's and the space's own, as they were written."""
        flags = self.flags(params)
        rules = (*BUILT_IN_RULES, *self.resolver.space.rules)
        return tuple(rule.text for rule in rules if rule.broken_by(flags) is not None)

    def flags(self, params: Mapping[str, ParamValue]) -> Mapping[str, FlagValue]:
        """All flags that a proposal is launched with."""
        return self.resolve(TrialRole.SEARCH, params).config.flags

    def fixed_proposals(self) -> dict[int, dict[str, ParamValue]]:
        """The parameters of the trials that are not drawn: the baseline's, and none for vLLM's defaults."""
        params, _ = self.resolver.baseline_params(device_memory_bytes=self._total_bytes())
        return {BASELINE_NUMBER: params, DEFAULT_NUMBER: {}}

    def baseline_outside(self) -> tuple[str, ...]:
        """Parameters that the baseline sets outside their range: it is measured as it is, and not modelled there."""
        return self.resolver.baseline_params(device_memory_bytes=self._total_bytes())[1]

    def _total_bytes(self) -> int | None:
        return self.device_memory_bytes() if self.device_memory_bytes is not None else None
