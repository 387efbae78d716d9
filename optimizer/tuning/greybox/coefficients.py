"""The few numbers that trials correct, and what is thought of them before the first.

The guesses are round figures of the classes of hardware: memory bandwidth and dense 16-bit compute of data sheets, of
which engines reach some 75 and 60 % (one H200 with a 14B model, `tests/data/h200/bound.jsonl`). Their spread is wide,
so that one trial moves them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optimizer.core.measurement import FloatArray
from optimizer.tuning.greybox.facts import ServingFacts

GIB = 2**30

NAMES = ("step", "request", "weights", "kv", "token", "outside", "gained")
"""Seconds of: a step, one more request in it, reading the weights once, reading the KV cache of one token of context,
computing one token, and a request outside the engine; and the tokens that guesses gain, over what their acceptance
promises: a lookup that finds nothing guesses nothing. The coefficients are the logarithms, in this order."""

_CARDS = (
    (160, 8.0e12, 2200e12),
    (130, 4.8e12, 990e12),
    (70, 2.6e12, 600e12),
    (40, 0.8e12, 200e12),
    (0, 0.6e12, 120e12),
)
"""From so many GiB on: bytes read and operations done in a second, by the data sheets of such cards."""
_READ_SHARE = 0.75
_COMPUTE_SHARE = 0.6
_CPU_BYTES_PER_S = 20e9
_CPU_OPERATIONS_PER_S = 60e9
_GAINED = 0.8
_GAINED_SD = 0.3


@dataclass(frozen=True, slots=True)
class Prior:
    """Means and standard deviations of the coefficients, shape (7,) each."""

    mean: FloatArray
    sd: FloatArray


def prior_of(facts: ServingFacts) -> Prior:
    """What is thought of the coefficients on this model and device."""
    if facts.device == "cpu":
        bytes_per_s, operations_per_s = _CPU_BYTES_PER_S, _CPU_OPERATIONS_PER_S
        step_s, request_s, token_s, outside_s = 5e-3, 2e-4, 2e-5, 0.02
        sd = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, _GAINED_SD)
    else:
        bytes_per_s, operations_per_s = _card(facts.device_bytes)
        step_s, request_s, token_s, outside_s = 3e-3, 2e-5, 1e-6, 0.01
        sd = (0.7, 1.0, 0.5, 0.7, 0.6, 1.0, _GAINED_SD)
    weights_s = (facts.weights_bytes or 0.0) / bytes_per_s
    kv_s = (facts.kv_bytes_per_token or 0.0) / bytes_per_s
    compute_s = 2.0 * (facts.active_parameters or 0.0) / operations_per_s
    means = (step_s, request_s, weights_s + 1e-5, kv_s + 1e-9, compute_s + token_s, outside_s, _GAINED)
    return Prior(np.array([math.log(mean) for mean in means]), np.array(sd))


def _card(device_bytes: int | None) -> tuple[float, float]:
    gib = 0.0 if device_bytes is None else device_bytes / GIB
    reads, computes = next((reads, computes) for least, reads, computes in _CARDS if gib >= least)
    return reads * _READ_SHARE, computes * _COMPUTE_SHARE
