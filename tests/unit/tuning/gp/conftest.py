"""A small space and an invented engine for the search by Gaussian processes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import pytest
from optuna.study import Study
from optuna.trial import FrozenTrial

from optimizer.core.record import ParamValue
from optimizer.core.scoring import Verdict
from optimizer.core.trial import TrialState
from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, SearchSpace
from optimizer.tuning.strategy import Ask, Estimate, Seen


@functools.cache
def mixed_space():
    """Twelve parameters of every kind, two of them conditional."""
    return SearchSpace(
        {
            "max-num-seqs": ChoiceParameter(kind="choice", choices=(16, 32, 64, 128, 256, 512), default=256),
            "max-num-batched-tokens": IntParameter(kind="int", low=512, high=16384, log=True, default=2048),
            "gpu-memory-utilization": FloatParameter(kind="float", low=0.8, high=0.95, step=0.01, default=0.92),
            "max-model-len": ChoiceParameter(kind="choice", choices=(4096, 8192, 16384, 32768), default=32768),
            "enable-prefix-caching": BoolParameter(kind="bool", default=True),
            "block-size": ChoiceParameter(kind="choice", choices=(16, 32, 64), default=16),
            "attention-backend": ChoiceParameter(kind="choice", choices=("FA", "FI", "TRITON"), default="FA"),
            "speculation": ChoiceParameter(
                kind="choice",
                sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}},
                default="none",
            ),
            "num-speculative-tokens": IntParameter(
                kind="int",
                low=1,
                high=8,
                when={"speculation": "ngram"},
                flag="speculative-config.num_speculative_tokens",
            ),
            "async-scheduling": BoolParameter(kind="bool", when={"speculation": "none"}, default=True),
            "cpu-offload-gb": FloatParameter(kind="float", low=0.0, high=8.0, default=0.0),
            "long-prefill-token-threshold": ChoiceParameter(kind="choice", choices=(0, 512, 1024), default=0),
        }
    )


def full(space: SearchSpace, params: Mapping[str, object]) -> dict:
    """With the defaults of what the params do not set."""
    return {**{name: p.default for name, p in space.parameters.items()}, **params}


def invented_engine(params: Mapping[str, object]) -> tuple[float, float] | float:
    """log throughput and log(P99 / limit), or how far the engine was from starting (above 0).

    More requests at once are faster until the KV pool is full; a long context asks for memory.
    """
    p = full(mixed_space(), params)
    pool_gib = 40.0 * p["gpu-memory-utilization"] - 30.0 - p["max-num-batched-tokens"] / 8192 + p["cpu-offload-gb"]
    needed_gib = p["max-model-len"] * 0.25e-3
    if needed_gib > pool_gib:
        return math.log(needed_gib / max(pool_gib, 0.1))
    running = min(p["max-num-seqs"], 40.0 * pool_gib)
    value = 0.6 * math.log(running) - 0.05 * p["cpu-offload-gb"]
    value += 0.25 * p["enable-prefix-caching"] - 0.3 * (p["attention-backend"] == "TRITON")
    value += 0.02 * math.log2(p["max-num-batched-tokens"] / 512)
    if p["speculation"] == "ngram":
        value += 0.25 - 0.02 * ((p["num-speculative-tokens"] or 4) - 4) ** 2
    return value, 0.5 * math.log(running / 150.0) + 0.06 * math.log2(p["max-num-batched-tokens"] / 2048)


@pytest.fixture
def space() -> SearchSpace:
    return mixed_space()


@pytest.fixture
def engine() -> Callable[[Mapping[str, object]], tuple[float, float] | float]:
    return invented_engine


def seen_trial(number: int, params: Mapping[str, ParamValue], result, noise: float = 0.0) -> Seen:
    """A trial as a strategy sees it: `result` is what `invented_engine` gives."""
    if isinstance(result, float):
        return Seen(number, params, TrialState.FAILED, crash=max(result, 0.01))
    rng = np.random.default_rng([number, 5])
    value, excess = np.array(result) + noise * rng.standard_normal(2)
    verdict = Verdict.FEASIBLE if excess <= 0.0 else Verdict.INFEASIBLE
    state = TrialState.FEASIBLE if excess <= 0.0 else TrialState.INFEASIBLE
    sd = max(noise, 0.01)
    return Seen(
        number, params, state, Estimate(value, sd), {"p99_e2e_ms": Estimate(excess, sd)}, {"p99_e2e_ms": verdict}
    )


def ask_for(
    history: Sequence[Seen], *, seed: int = 0, pending=(), keeps_rules=lambda _: True, misfit=lambda _: None
) -> Ask:
    """An ask without a study behind it."""
    number = len(history)
    rng = np.random.default_rng([seed, number])
    study, trial = cast(Study, None), cast(FrozenTrial, None)
    return Ask(number, rng, tuple(history), tuple(pending), keeps_rules, misfit, study, trial)


@pytest.fixture
def seen_as():
    return seen_trial


@pytest.fixture
def ask():
    return ask_for
