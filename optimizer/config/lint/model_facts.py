"""Bytes that rules ask of a model's shape."""

from __future__ import annotations

from optimizer.engine.memory import CannotPredict, ModelShape
from optimizer.engine.memory.kv_cache import kv_layout
from optimizer.engine.memory.launch_sizes import launch_sizes
from optimizer.engine.memory.weights import weight_bytes


def weights_bytes(shape: ModelShape) -> float:
    """All weights, as the checkpoint holds them, on one device."""
    return weight_bytes(shape, dtype=shape.dtype, quantization=shape.quantization)[0]


def request_kv_bytes(shape: ModelShape, tokens: int) -> float | None:
    """KV cache of one request of so many tokens on one device; None when the layout is not known."""
    latent = shape.latent is not None
    try:
        sizes = launch_sizes({}, {}, device="gpu", device_bytes=0, max_position=shape.max_position, latent=latent)
        layout = kv_layout(shape, sizes, shape.dtype)
    except CannotPredict:
        return None
    return layout.request_blocks(tokens, 0) * layout.block_bytes[0]
