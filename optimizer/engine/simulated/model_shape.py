"""The part of a model's config.json that memory depends on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from optimizer.core.errors import InputError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder. The defaults (1.1B weights, 64 KiB of KV a token in 16 bits) stand in for an absent model."""

    num_hidden_layers: int = 16
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 32_000
    max_position_embeddings: int = 8192

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    @property
    def weight_elements(self) -> int:
        """Attention, gated MLP and one embedding (tied); norms and biases are too small to matter."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_attention_heads + self.num_key_value_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embedding = self.vocab_size * self.hidden_size
        return self.num_hidden_layers * (attention + mlp) + embedding


def read_model_shape(model: str) -> ModelShape:
    """The shape in `model`/config.json, or the default one when there is no such file.

    Raises:
        InputError: The file is no JSON object.
    """
    path = Path(model) / "config.json"
    if not path.is_file():
        return ModelShape()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(config).__name__}")
    found = {name: int(config[name]) for name in ModelShape.__slots__ if isinstance(config.get(name), int)}
    if "num_key_value_heads" not in found and "num_attention_heads" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    if "head_dim" not in found and "hidden_size" in found and "num_attention_heads" in found:
        found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
    return ModelShape(**found)
