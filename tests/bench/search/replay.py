"""A search replayed on what a live vLLM measured: the full factorial part of tests/data/tiny_cpu_grid.

Of the grid's runs only the 48 settings are used of which every combination was measured, so that no setting is answered
by another's figures. What a setting is truly worth is the geometric mean of its runs, which is one run for most:
regrets here are against the best mean, and cannot be told from 0 within the noise of a run. The noise of a replayed run
is drawn from how the repeats of the grid lie about their mean, all metrics of one repeat together.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from optimizer.core.engine_config import FlagValue
from optimizer.core.record import ParamValue
from optimizer.search_spaces import GIB, BoolParameter, FloatParameter, Parameter, SearchSpace
from optimizer.tuning.greybox.facts import ServingFacts
from tests.bench.search.account import Footprint, WrongAccount
from tests.bench.search.situation import Noise, Situation, Truth
from tests.bench.search.spaces import choice

GRID = Path(__file__).parents[2] / "data" / "tiny_cpu_grid" / "grid.jsonl"
SEEDS = range(2000, 2024)
DEVICE_BYTES = round(23.5 * GIB)
_FIXED: Mapping[str, ParamValue] = {"max-model-len": 2048, "speculation": "none"}
_KV_GIB = 32.0 / 2**20
_TAKEN_GIB = 0.55
_LIMITED = "p95_e2e_ms"

Setting = tuple[ParamValue, ...]

PARAMETERS: Mapping[str, Parameter] = {
    "max-num-seqs": choice(16, 32, 64, default=64),
    "enable-prefix-caching": BoolParameter(kind="bool", default=True),
    "block-size": choice(32, 128, default=128),
    "engine-memory": FloatParameter(
        kind="float", flag="gpu-memory-utilization", unit="GiB", low=0.9, high=1.7, step=0.8, default=1.7
    ),
    "max-num-batched-tokens": choice(512, 2048, default=2048),
}
"""The axes and values of the factorial. vLLM's own `max-num-seqs` is 128 here, of which nothing was measured."""
BASELINE: Mapping[str, ParamValue] = {
    "max-num-seqs": 16,
    "enable-prefix-caching": False,
    "block-size": 128,
    "engine-memory": 1.7,
    "max-num-batched-tokens": 2048,
}


class GridEngine:
    """Answers with the mean of the runs that were measured."""

    def __init__(self) -> None:
        self._space = SearchSpace(PARAMETERS)
        self._defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}

    def truth(self, flags: Mapping[str, FlagValue]) -> Truth:
        """Of the setting itself; a flag that is not set has the default of the space."""
        return Truth(measured_means()[self._setting(flags)])

    def footprint(self, flags: Mapping[str, FlagValue]) -> Footprint:
        """No setting of the factorial lacks memory."""
        params = self._params(flags)
        return Footprint(float(params["engine-memory"]), 0.1, _TAKEN_GIB - 0.1, _KV_GIB, 2048, 128)

    def _params(self, flags: Mapping[str, FlagValue]) -> dict[str, ParamValue]:
        params, _ = self._space.params_from_flags(flags, device_memory_bytes=DEVICE_BYTES)
        return {name: params.get(name, default) for name, default in self._defaults.items() if default is not None}

    def _setting(self, flags: Mapping[str, FlagValue]) -> Setting:
        params = self._params(flags)
        return tuple(params[name] for name in PARAMETERS)


@cache
def _runs() -> dict[Setting, list[dict[str, float]]]:
    runs: dict[Setting, list[dict[str, float]]] = defaultdict(list)
    for line in GRID.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        params = record["params"]
        whole = params.keys() == {*PARAMETERS, *_FIXED} and all(params[name] == _FIXED[name] for name in _FIXED)
        setting = tuple(params.get(name) for name in PARAMETERS)
        if whole and all(PARAMETERS[name].contains(value) for name, value in zip(PARAMETERS, setting, strict=True)):
            runs[setting].append({name: value for name, value in record["metrics"].items() if value is not None})
    return dict(runs)


@cache
def measured_means() -> dict[Setting, dict[str, float]]:
    """Setting to the geometric mean of each metric over its runs; of those that may be 0 the plain one."""
    means = {}
    for setting, runs in _runs().items():
        names = set.intersection(*(set(run) for run in runs))
        means[setting] = {name: _mean([run[name] for run in runs]) for name in names}
    return means


@cache
def residuals() -> tuple[dict[str, float], ...]:
    """How each repeat lies about the mean of its setting, in log units, widened by what the mean took of it."""
    found = []
    for setting, runs in _runs().items():
        if len(runs) < 2:
            continue
        widened = math.sqrt(len(runs) / (len(runs) - 1))
        means = measured_means()[setting]
        for run in runs:
            logs = {n: widened * math.log(run[n] / means[n]) for n in means if min(run[n], means[n]) > 0.0}
            found.append(logs)
    return tuple(found)


def tiny_cpu_grid(seed: int) -> Situation:
    """The study of `tiny-cpu` on its grid; a seed draws the noise and nothing else."""
    engine = GridEngine()
    space = SearchSpace(PARAMETERS)
    flags = space.flags(BASELINE, device_memory_bytes=DEVICE_BYTES)
    spread = {name: float(np.std([r[name] for r in residuals()])) for name in ("output_tokens_per_s", _LIMITED)}
    return Situation(
        name="tiny-cpu-grid",
        seed=seed,
        space=space,
        baseline=BASELINE,
        metric="output_tokens_per_s",
        maximise=True,
        limits={_LIMITED: engine.truth(flags).metrics[_LIMITED], "error_rate": 0.01},
        engine=engine,
        account=WrongAccount(1.0, 1.0),
        facts=_FACTS,
        noise=Noise(spread["output_tokens_per_s"], spread[_LIMITED], seen=0.3, residuals=residuals()),
    )


SITUATIONS: Mapping[str, Callable[[int], Situation]] = {"tiny-cpu-grid": tiny_cpu_grid}

_FACTS = ServingFacts(
    prompt_tokens_mean=224.0,
    prompt_tokens_p99=240.0,
    output_tokens_mean=32.0,
    output_tokens_p99=48.0,
    request_tokens_p99=285.0,
    longest_request_tokens=288,
    shared_prefix_tokens=192,
    shared_prefixes=4,
    in_flight=48,
    kv_bytes_per_token=32.0 * 1024.0,
    device="cpu",
    device_bytes=DEVICE_BYTES,
    model_context_tokens=16384,
    default_max_num_seqs=128,
    default_max_num_batched_tokens=2048,
    default_block_size=128,
)


def _mean(values: list[float]) -> float:
    if min(values) > 0.0:
        return float(np.exp(np.mean(np.log(values))))
    return float(np.mean(values))
