"""Bytes an element takes, from `--dtype` and `--kv-cache-dtype`."""

from __future__ import annotations

from collections.abc import Mapping

DTYPES: Mapping[str, int] = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
"""Choices of `--dtype` to bytes per weight; `auto` makes 16 bits of a checkpoint in 32."""

KV_CACHE_DTYPES: Mapping[str, int] = {
    "auto": 0,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "int8_per_token_head": 1,
    "fp8_per_token_head": 1,
}
"""Values of `--kv-cache-dtype` that are modelled to bytes per element; `auto` follows `--dtype`."""


def kv_element_bytes(kv_cache_dtype: str, dtype: str) -> int:
    """Bytes of one element of the KV cache; both names are known ones."""
    return KV_CACHE_DTYPES[kv_cache_dtype] or DTYPES[dtype]
