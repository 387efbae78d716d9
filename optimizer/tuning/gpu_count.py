"""How many GPUs an engine takes, and the most that any engine of a study takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from optimizer.core.engine_config import EngineConfig, FlagValue, canonical_flag
from optimizer.core.record import ParamValue
from optimizer.core.trial import TrialRole
from optimizer.search_spaces import FloatParameter, Parameter, SearchSpace
from optimizer.tuning.settings import Settings

PARALLEL_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size")
"""vLLM's world size is their product (`vllm/config/parallel.py`); decode context parallelism shares these cards."""
_DATA_PARALLEL = "data-parallel-size"
_DATA_PARALLEL_LOCAL = "data-parallel-size-local"


def gpus_of(config: EngineConfig) -> int:
    """Cards of this host that the engine takes: its world size, times its data-parallel replicas on this host."""
    replicas = _size(config.flags, _DATA_PARALLEL)
    if _DATA_PARALLEL_LOCAL in config.flags:
        replicas = min(replicas, _size(config.flags, _DATA_PARALLEL_LOCAL))
    count = replicas
    for flag in PARALLEL_FLAGS:
        count *= _size(config.flags, flag)
    return count


def most_gpus(settings: Settings) -> int:
    """The most cards that a trial of the study takes: baseline, defaults, and whatever the space may propose."""
    roles = (TrialRole.BASELINE, TrialRole.DEFAULT)
    counts = [gpus_of(settings.resolve(role, {}).config) for role in roles]
    for params in _proposals(settings.resolver.space):
        if not settings.broken_rules(params):
            counts.append(gpus_of(settings.resolve(TrialRole.SEARCH, params).config))
    return max(counts)


def _size(flags: Mapping[str, FlagValue], flag: str) -> int:
    value = flags.get(flag, 1)
    return max(1, value) if isinstance(value, int) else 1


def _proposals(space: SearchSpace) -> Iterator[dict[str, ParamValue]]:
    """Every setting of the parameters that decide how many cards are taken, and of what these depend on."""
    deciding = _deciding(space)
    names = list(deciding)
    for values in itertools.product(*deciding.values()):
        chosen = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        yield space.existing(chosen)


def _deciding(space: SearchSpace) -> dict[str, list[ParamValue | None]]:
    """Name to values (None: not set) of each parameter that sets one of the flags, or that one of those depends on."""
    flags = {*PARALLEL_FLAGS, _DATA_PARALLEL, _DATA_PARALLEL_LOCAL}
    found: dict[str, list[ParamValue | None]] = {}
    queue: list[str] = []
    for name, parameter in space.parameters.items():
        if flags & {canonical_flag(flag) for flag in parameter.flag_names(name)}:
            found[name] = [None, *_values(parameter)]
            queue.append(name)
    while queue:
        for other, value in space.parameters[queue.pop()].when.items():
            if other not in found:
                found[other] = [None]
                queue.append(other)
            if value not in found[other]:
                found[other].append(value)
    return found


def _values(parameter: Parameter) -> Sequence[ParamValue]:
    return () if isinstance(parameter, FloatParameter) else parameter.values
