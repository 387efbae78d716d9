"""The KV cache in blocks: how many bytes one takes, how many a request needs, how many tokens a pool holds.

As `vllm/v1/core/kv_cache_utils.py` counts (`get_kv_cache_groups`, `_get_kv_cache_groups_uniform_page_size`,
`get_kv_cache_capacity`) with the specs of `vllm/v1/kv_cache_interface.py`: layers are put into groups of one size,
every group keeps a block table of its own, and all draw their blocks from one pool.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from optimizer.engine.memory.config_fields import CannotPredict
from optimizer.engine.memory.launch_sizes import LaunchSizes
from optimizer.engine.memory.model_shape import DTYPE_BYTES, ModelShape
from optimizer.engine.memory.weights import local_kv_heads, stage_layers

_UNEVEN = 1.5
"""vLLM pads the smaller kind of layers to the larger while the larger is below this many times the smaller."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The blocks of one launch.

    Attributes:
        bytes_per_token_layer: Keys and values of one token in one layer on one GPU.
        block_size: Tokens in a block.
        block_bytes: Bytes of a block on one GPU of each pipeline stage.
        group_windows: For each group of layers the tokens it looks back, or None for all.
    """

    bytes_per_token_layer: float
    block_size: int
    block_bytes: tuple[float, ...]
    group_windows: tuple[int | None, ...]

    def request_blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks that one request of `tokens` takes: all of its own, or those of the window and of steps in flight."""
        return sum(self._group_blocks(window, tokens, in_flight_tokens) for window in self.group_windows)

    def pool_tokens(self, blocks: int, max_model_len: int, in_flight_tokens: int) -> int:
        """Tokens of a pool as vLLM reports them: those of so many requests of the longest kind as fit."""
        return int(blocks / self.request_blocks(max_model_len, in_flight_tokens) * max_model_len)

    def pool_blocks(self, tokens: float, max_model_len: int, in_flight_tokens: int) -> float:
        """The reverse of `pool_tokens`, up to rounding."""
        return tokens / max_model_len * self.request_blocks(max_model_len, in_flight_tokens)

    def _group_blocks(self, window: int | None, tokens: int, in_flight_tokens: int) -> int:
        if window is None:
            return -(-tokens // self.block_size)
        # One more, since the window need not begin where a block does.
        return -(-min(window - 1 + in_flight_tokens, tokens) // self.block_size) + 1


def kv_layout(shape: ModelShape, sizes: LaunchSizes, dtype: str) -> KvLayout:
    """The blocks of a launch.

    Args:
        shape: The model.
        sizes: The launch.
        dtype: Type that the model is run in.

    Raises:
        CannotPredict: The KV cache has a type whose layout is not known, or the model several windows.
    """
    element = _element_bytes(shape, sizes.kv_cache_dtype, dtype)
    if shape.latent is not None:
        per_token = shape.latent.cached_dim * element
    else:
        per_token = 2 * local_kv_heads(shape, sizes.tensor_parallel) * shape.head_dim * element
    groups, group_layers = _groups(shape, hybrid=sizes.hybrid_kv_cache)
    page = per_token * sizes.block_size
    if len(groups) == 1:
        counts = [len(layers) for layers in stage_layers(shape.layers, sizes.pipeline_parallel)]
    else:
        counts = [-(-group_layers // sizes.pipeline_parallel)] * sizes.pipeline_parallel
    return KvLayout(per_token, sizes.block_size, tuple(page * count for count in counts), groups)


def _groups(shape: ModelShape, *, hybrid: bool) -> tuple[tuple[int | None, ...], int]:
    """The window of each group, and the layers of one."""
    kinds = Counter(shape.windows)
    if len(kinds) == 1:
        return (shape.windows[0],), shape.layers
    if not hybrid:
        return (None,), shape.layers
    if len(kinds) > 2 or None not in kinds:
        raise CannotPredict(f"{shape.architecture} has layers of several windows")
    size = min(kinds.values())
    if max(kinds.values()) < size * _UNEVEN:
        size = max(kinds.values())
    windows = [window for window, count in kinds.items() for _ in range(-(-count // size))]
    return tuple(windows), size


def _element_bytes(shape: ModelShape, kv_cache_dtype: str, dtype: str) -> float:
    name = kv_cache_dtype.lower()
    if name == "auto":
        fp8 = shape.quantization is not None and shape.quantization.kv_fp8
        return 1.0 if fp8 else float(DTYPE_BYTES[dtype])
    if name in DTYPE_BYTES:
        return float(DTYPE_BYTES[name])
    if name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"):
        return 1.0
    raise CannotPredict(f"the layout of a KV cache of type {kv_cache_dtype[:40]} is not known")
