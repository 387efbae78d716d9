"""Bytes of weights on one GPU, from a model's shape and how it is split.

Counted from the shapes of the layers' matrices, as vLLM's `model_executor/layers/linear.py`, `fused_moe` and
`vocab_parallel_embedding.py` split them: a column or a row of each matrix per tensor-parallel rank, key and value heads
kept whole once there are fewer of them than ranks, routers and compressed projections on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.engine.memory.model_shape import DTYPE_BYTES, ModelShape
from optimizer.engine.memory.quantization import Quantization

_VOCABULARY_PADDING = 64
_NORMS_PER_LAYER = 2


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Numbers of weights on one GPU: matrices that may be compressed, those of experts among them apart, and others."""

    matrices: float = 0.0
    experts: float = 0.0
    plain: float = 0.0

    def __add__(self, other: _Parameters) -> _Parameters:
        return _Parameters(self.matrices + other.matrices, self.experts + other.experts, self.plain + other.plain)

    def bytes_of(self, element_bytes: int, quantization: Quantization | None) -> float:
        compressed = element_bytes if quantization is None else quantization.bits / 8
        matrices = element_bytes if quantization is not None and quantization.experts_only else compressed
        return self.matrices * matrices + self.experts * compressed + self.plain * element_bytes


def stage_layers(layers: int, stages: int) -> list[range]:
    """Which layers each pipeline stage holds (vLLM's `distributed/utils.py`, `get_pp_indices`)."""
    counts = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        counts[-index] += 1
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def weight_bytes(
    shape: ModelShape,
    *,
    dtype: str,
    quantization: Quantization | None,
    tensor_parallel: int = 1,
    expert_ranks: int = 1,
    stages: int = 1,
    as_stored: bool = False,
) -> list[float]:
    """Bytes of weights on one GPU of each pipeline stage.

    Args:
        shape: The model.
        dtype: Type of what is not compressed; a key of `DTYPE_BYTES`.
        quantization: How matrices are compressed.
        tensor_parallel: GPUs that a layer is split over.
        expert_ranks: GPUs that its experts are split over.
        stages: Pipeline stages.
        as_stored: Leave out what vLLM derives after loading, to compare with a checkpoint.
    """
    totals = []
    for stage, layers in enumerate(stage_layers(shape.layers, stages)):
        parameters = _ends(shape, tensor_parallel, first=stage == 0, last=stage == stages - 1)
        for layer in layers:
            parameters += _layer(shape, layer, tensor_parallel, expert_ranks, as_stored=as_stored)
        totals.append(parameters.bytes_of(DTYPE_BYTES[dtype], quantization))
    return totals


def local_kv_heads(shape: ModelShape, tensor_parallel: int) -> int:
    """Key and value heads on one GPU: at least one, so that they are repeated once there are more GPUs than heads."""
    return max(1, -(-shape.kv_heads // tensor_parallel))


def _ends(shape: ModelShape, ranks: int, *, first: bool, last: bool) -> _Parameters:
    rows = -(-shape.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    table = rows * shape.hidden_size / ranks
    # A tied head is a second use of the embedding, unless the two lie on different stages.
    tables = int(first) + int(last) - int(first and last and shape.tied_embeddings)
    return _Parameters(plain=tables * table + (shape.hidden_size if last else 0))


def _layer(shape: ModelShape, layer: int, ranks: int, expert_ranks: int, *, as_stored: bool) -> _Parameters:
    attention = _attention(shape, ranks) if shape.latent is None else _latent(shape, ranks, as_stored=as_stored)
    norms = _Parameters(plain=_NORMS_PER_LAYER * shape.hidden_size)
    return attention + norms + _feed_forward(shape, layer, ranks, expert_ranks)


def _attention(shape: ModelShape, ranks: int) -> _Parameters:
    query_and_output = 2 * shape.hidden_size * shape.query_heads * shape.head_dim / ranks
    keys_and_values = 2 * shape.hidden_size * local_kv_heads(shape, ranks) * shape.head_dim
    return _Parameters(matrices=query_and_output + keys_and_values)


def _latent(shape: ModelShape, ranks: int, *, as_stored: bool) -> _Parameters:
    latent = shape.latent
    if latent is None:
        return _Parameters()
    hidden, heads = shape.hidden_size, shape.query_heads / ranks
    if latent.q_lora_rank:
        query = latent.q_lora_rank * (hidden + heads * shape.head_dim)
    else:
        query = hidden * heads * shape.head_dim
    expansion = latent.kv_lora_rank * heads * (latent.nope_dim + latent.value_dim)
    output = heads * latent.value_dim * hidden
    # The expansion is kept a second time, uncompressed, absorbed into queries and outputs (`mla_attention.py`).
    absorbed = 0.0 if as_stored else expansion
    return _Parameters(matrices=query + hidden * latent.cached_dim + expansion + output, plain=absorbed)


def _feed_forward(shape: ModelShape, layer: int, ranks: int, expert_ranks: int) -> _Parameters:
    matrices = 3 if shape.gated_mlp else 2
    experts = shape.experts
    if experts is None or not experts.layers[layer]:
        return _Parameters(matrices=matrices * shape.hidden_size * shape.mlp_width / ranks)
    routed = experts.count * matrices * shape.hidden_size * experts.width / expert_ranks
    shared = matrices * shape.hidden_size * experts.shared_width / ranks
    return _Parameters(matrices=shared, experts=routed, plain=shape.hidden_size * experts.count)
