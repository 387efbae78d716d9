"""A 14B model on an 80 GiB card, made up of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from optimizer.core.engine_config import FlagValue
from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.coefficients import prior_of
from optimizer.tuning.greybox.engine_flags import EngineFlags, engine_flags
from optimizer.tuning.greybox.engine_model import Behaviour, Steady, steady_state
from optimizer.tuning.greybox.facts import ServingFacts
from optimizer.tuning.greybox.pool import fitted_pool

CARD = ServingFacts(
    prompt_tokens_mean=1400.0,
    prompt_tokens_p99=2900.0,
    output_tokens_mean=230.0,
    output_tokens_p99=512.0,
    request_tokens_p99=3170.0,
    longest_request_tokens=3560,
    shared_prefix_tokens=1000,
    shared_prefixes=1,
    in_flight=64,
    weights_bytes=29.5e9,
    overhead_bytes=2e9,
    kv_bytes_per_token=196_608.0,
    parameters=14.8e9,
    active_parameters=14.8e9,
    device="gpu",
    device_bytes=80 * 2**30,
    model_context_tokens=32_768,
    default_max_num_seqs=1024,
    default_max_num_batched_tokens=8192,
    default_block_size=16,
)


def facts(**changes: Any) -> ServingFacts:
    """The card's facts with changes."""
    return dataclasses.replace(CARD, **changes)


def flags(*launches: Mapping[str, FlagValue], of: ServingFacts = CARD) -> EngineFlags:
    """Columns of launches."""
    return engine_flags(launches, of)


def steady(
    *launches: Mapping[str, FlagValue],
    of: ServingFacts = CARD,
    pool_tokens: float | None = None,
    acceptance: float = 0.6,
    coefficients: FloatArray | None = None,
) -> Steady:
    """The steady state of launches under the prior's coefficients, or others."""
    columns = engine_flags(launches, of)
    tokens = fitted_pool(columns, [None] * len(launches), of).tokens(columns)
    if pool_tokens is not None:
        tokens = np.full(len(launches), pool_tokens)
    known = prior_of(of).mean if coefficients is None else coefficients
    return steady_state(known, columns, tokens, Behaviour(of, np.full(len(launches), acceptance), 0.0, 1.0))
