"""True bytes of a checkpoint's weights, where its safetensors files or their index lie at hand."""

from __future__ import annotations

import json
from pathlib import Path

from optimizer.engine.memory.config_fields import CannotPredict, read_json_object

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_MOST_CHECKPOINT_BYTES = 10**15


def checkpoint_bytes(folder: Path) -> int | None:
    """Bytes of all tensors: the index's total, or the sum of a single file's; None where neither can be read.

    A file that is cut short or no safetensors at all says nothing: the shape of the model then has to do.
    """
    try:
        metadata = read_json_object(folder / _INDEX).section("metadata")
        if metadata is not None and metadata.has("total_size"):
            return metadata.size("total_size", most=_MOST_CHECKPOINT_BYTES)
    except CannotPredict:
        pass
    return _single_file_bytes(folder / _SINGLE)


def _single_file_bytes(file: Path) -> int | None:
    """The end of the last tensor, which the header of a safetensors file names for each."""
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= _MOST_HEADER_BYTES:
                return None
            header = json.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        total = max(ends)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None
    return total if isinstance(total, int) and 0 < total <= _MOST_CHECKPOINT_BYTES else None
