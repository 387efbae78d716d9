"""What an engine takes besides weights and KV cache, as a few quantities times coefficients that starts correct.

    taken = weight factor * weights + base + peak + capture * graphs + ngram * (n-gram speculation is on)
    peak  = the larger of activation * forward pass and logit bytes * rows of logits

On a GPU that is what vLLM's profiling run finds (`v1/worker/gpu_worker.py`, `determine_available_memory`): memory that
was taken since its first snapshot, and the most that torch held while the largest step ran, be it in a layer or in the
sampler. On the CPU it is the resident memory of the worker (`v1/worker/cpu_worker.py`), which has run no step when the
model is not compiled.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from optimizer.engine.memory.launch_sizes import GIB, Device, LaunchSizes
from optimizer.engine.memory.model_shape import DTYPE_BYTES, ModelShape
from optimizer.engine.memory.weights import local_kv_heads

Array = npt.NDArray[np.float64]

_SHARPNESS = 8.0
"""Power of the smooth maximum: 9 % above the larger where both are equal, 0.05 % where one is twice the other."""
_GRAPH_BASE_BYTES = 2**20
_GRAPH_LAYER_BYTES = 2**16
"""A captured graph: what the driver keeps of it, and the nodes of one layer (about 20 kernels of some kB)."""


@dataclass(frozen=True, slots=True)
class Quantities:
    """What a launch multiplies the coefficients with; GiB, and billions of logits."""

    weights: float
    forward: float
    giga_logits: float
    graphs: float
    ngram: float

    def as_array(self) -> Array:
        """Shape (5,), in the order of the fields."""
        return np.array(astuple(self))


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One value, or one standard deviation, for each coefficient. Units: GiB; `logits` in GiB per billion."""

    weights: float
    base: float
    activation: float
    logits: float
    capture: float
    ngram: float

    def as_array(self) -> Array:
        """Shape (6,), in the order of the fields."""
        return np.array(astuple(self))


def quantities(shape: ModelShape, sizes: LaunchSizes, dtype: str, weights_bytes: float, device: Device) -> Quantities:
    """What this launch multiplies the coefficients with."""
    runs = device == "gpu" or sizes.compiled
    rows = min(sizes.max_num_seqs, sizes.max_num_batched_tokens)
    if device == "gpu":
        graphs = 2 * sizes.graph_sizes * (_GRAPH_BASE_BYTES + shape.layers * _GRAPH_LAYER_BYTES) / GIB
    else:
        graphs = float(sizes.compiled)
    return Quantities(
        weights=weights_bytes / GIB,
        forward=_forward_bytes(shape, sizes, dtype) / GIB if runs else 0.0,
        giga_logits=rows * shape.vocab_size / 1e9 if runs else 0.0,
        graphs=graphs,
        ngram=float(sizes.ngram),
    )


def prior(device: Device, *, weights_sd: float, experts: bool) -> tuple[Coefficients, Coefficients]:
    """Means and standard deviations before any start.

    Args:
        device: What the engine runs on.
        weights_sd: How far the weights may be off, as a share.
        experts: The model has experts, whose scratch memory depends on the kernels.
    """
    if device == "cpu":
        # Seen on vLLM 0.32: 0.69 GiB resident with an eager model of 5 MB, 0.53 where pages of the parent process were
        # not counted, 0.07 more with n-gram speculation (numba); compiling loads more libraries.
        return (
            Coefficients(weights=1.0, base=0.66, activation=1.0, logits=6.0, capture=0.3, ngram=0.065),
            Coefficients(weights=weights_sd, base=0.15, activation=0.4, logits=3.0, capture=0.2, ngram=0.02),
        )
    # Seen on an H200 with a 14B model (tests/data/h200): 1.7 GiB besides weights at 2,048 tokens and 32 sequences, 2.0
    # at 16,384 and 1,024, so most of it does not grow with the step; wide, since one model on one card was seen.
    # Whether graphs are charged depends on release and model runner.
    return (
        Coefficients(weights=1.0, base=1.1, activation=0.5, logits=3.0, capture=0.5, ngram=0.0),
        Coefficients(
            weights=weights_sd,
            base=0.5,
            activation=0.4 if experts else 0.3,
            logits=3.0,
            capture=0.4,
            ngram=0.1,
        ),
    )


def taken_gib(coefficients: Array, amounts: Array) -> Array:
    """GiB taken, shape (n,), for coefficients of shape (n, 6) and the quantities of one launch, shape (5,)."""
    weight, base, activation, logits, capture, ngram = coefficients.T
    weights, forward, giga_logits, graphs, with_ngram = amounts
    layer, sampler = activation * forward, logits * giga_logits
    peak: Array = _smooth_larger(np.maximum(layer, 0.0), np.maximum(sampler, 0.0))
    total: Array = weight * weights + base + peak + capture * graphs + ngram * with_ngram
    return total


def slopes(coefficients: Array, amounts: Array) -> Array:
    """Derivatives of `taken_gib` by the coefficients, shape (6,), at coefficients of shape (6,)."""
    weights, forward, giga_logits, graphs, with_ngram = amounts
    layer = max(float(coefficients[2]) * forward, 0.0)
    sampler = max(float(coefficients[3]) * giga_logits, 0.0)
    larger = max(layer, sampler)
    if larger == 0.0:
        by_layer = by_sampler = 0.0
    else:
        peak = float(_smooth_larger(np.array(layer), np.array(sampler)))
        by_layer = (layer / peak) ** (_SHARPNESS - 1.0)
        by_sampler = (sampler / peak) ** (_SHARPNESS - 1.0)
    return np.array([weights, 1.0, by_layer * forward, by_sampler * giga_logits, graphs, with_ngram])


def _smooth_larger(one: Array, other: Array) -> Array:
    larger = np.maximum(one, other)
    smaller = np.minimum(one, other)
    ratio = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0.0)
    smooth: Array = larger * (1.0 + ratio**_SHARPNESS) ** (1.0 / _SHARPNESS)
    return smooth


def _forward_bytes(shape: ModelShape, sizes: LaunchSizes, dtype: str) -> float:
    """The widest point of a layer in the largest step: residual, input and output, and what the widest part holds."""
    ranks = sizes.tensor_parallel
    heads = shape.query_heads / ranks
    if shape.latent is None:
        attention = (2 * heads + 2 * local_kv_heads(shape, ranks)) * shape.head_dim
    else:
        # Query, key and value of every head are laid out for the prefill.
        attention = heads * (2 * shape.head_dim + shape.latent.value_dim)
    gate = 2 if shape.gated_mlp else 1
    widest = max(attention, (gate + 1) * shape.mlp_width / ranks)
    experts = shape.experts
    if experts is not None:
        # Both matrix products of the chosen experts write one row for each token and expert.
        rows = experts.per_token * (max(gate * experts.width / ranks, shape.hidden_size) + experts.width / ranks)
        widest = max(widest, rows)
    per_token = 3 * shape.hidden_size + widest
    return sizes.max_num_batched_tokens * per_token * DTYPE_BYTES[dtype]
