"""One way to launch the engine: its flags in canonical form, and the fingerprint that identifies it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
FlagValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue]"
"""A flag's value. True stands for `--flag`, False for `--no-flag`; lists give several words; dicts give JSON."""


@functools.lru_cache(maxsize=4096)
def canonical_flag(name: str) -> str:
    """The flag's one spelling here: no leading dashes, and `-` for `_` in its name (not in a dotted key below it).

    A search resolves a thousand settings for one proposal, with the same few names: they are remembered.

    >>> canonical_flag("--max_num_seqs")
    'max-num-seqs'
    >>> canonical_flag("speculative_config.num_speculative_tokens")
    'speculative-config.num_speculative_tokens'
    """
    head, dot, key = name.lstrip("-").partition(".")
    return head.replace("_", "-").lstrip("-") + dot + key


@dataclass(frozen=True, slots=True, eq=False)
class EngineConfig:
    """What is launched. Two configs are equal when their fingerprints are: 1 and true are different values of a flag.

    Attributes:
        engine: Name of the adapter that launches it, such as `vllm`.
        model: What the engine is told to serve: a local path or a hub id.
        flags: Canonical flag name to value, sorted by name. Never holds host, port, key or served model name.
        env: Environment variables that the space sets on top of the inherited ones.
    """

    engine: str
    model: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        flags = {canonical_flag(name): value for name, value in self.flags.items()}
        object.__setattr__(self, "flags", MappingProxyType(dict(sorted(flags.items()))))
        object.__setattr__(self, "env", MappingProxyType(dict(sorted(self.env.items()))))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (first 16 hex digits) over everything that shapes the engine; equal settings have equal ones."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, JsonValue]:
        """The config as plain JSON data, for records and exports."""
        return {"engine": self.engine, "model": self.model, "flags": dict(self.flags), "env": dict(self.env)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineConfig) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)
