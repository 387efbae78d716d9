"""Every flag of an installed vLLM, as its own parser knows them."""

from __future__ import annotations

import difflib
from functools import cached_property
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Kind: TypeAlias = Literal["switch", "whole", "number", "size", "size_or_auto", "text", "json", "json_or_text", "any"]
"""What a flag's word must be. `size` takes 8k and 8K besides whole numbers; `any` is not known."""


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeySpec(_Described):
    """A key inside the JSON of a flag."""

    kind: Kind = Field(description="What its value must be.")
    choices: tuple[str, ...] | None = Field(description="All that it may be; null when that is open.")
    keys: dict[str, KeySpec] | None = Field(description="The keys of the object that it holds; null when open.")


class FlagSpec(_Described):
    """One flag."""

    name: str = Field(description="Canonical name, without dashes.")
    on: tuple[str, ...] = Field(description="Long spellings, with dashes.")
    off: tuple[str, ...] = Field(description="Long spellings that turn it off.")
    short: tuple[str, ...] = Field(description="Short spellings, with the dash.")
    kind: Kind = Field(description="What its value must be.")
    words: Literal["none", "one", "optional", "many"] = Field(description="How many words follow it.")
    nullable: bool = Field(description="Whether the word None stands for no value.")
    choices: tuple[str | int | None, ...] | None = Field(description="All that it may be; null when that is open.")
    folds: bool = Field(description="Whether it reads A-B as a_b.")
    default: JsonValue = Field(description="The parser's default; null where it has none, or JSON cannot hold it.")
    help: str = Field(description="First paragraph of its help.")
    keys: dict[str, KeySpec] | None = Field(description="The keys of its JSON object; null when open, or it has none.")

    @property
    def takes_keys(self) -> bool:
        """Whether `--flag.key VALUE` is understood."""
        return self.kind in ("json", "json_or_text", "any") and self.words == "one"


class FlagCatalogue(_Described):
    """The flags of one version, and the environment variables that it reads."""

    version: str = Field(description="Of vLLM.")
    flags: tuple[FlagSpec, ...] = Field(description="All flags of the server, by name.")
    variables: frozenset[str] = Field(description="Variables named VLLM_* that it reads; empty when not known.")

    @cached_property
    def _by_spelling(self) -> dict[str, FlagSpec]:
        return {word: flag for flag in self.flags for word in (*flag.on, *flag.off, *flag.short)}

    @cached_property
    def _by_name(self) -> dict[str, FlagSpec]:
        return {flag.name: flag for flag in self.flags}

    @property
    def names(self) -> frozenset[str]:
        """Canonical names of all flags."""
        return frozenset(self._by_name)

    def flag(self, name: str) -> FlagSpec | None:
        """The flag of a canonical name, or of another long spelling without its dashes."""
        return self._by_name.get(name) or self._by_spelling.get(f"--{name}")

    def spelled(self, word: str) -> FlagSpec | None:
        """The flag that has exactly this spelling, dashes included and `_` written as `-`."""
        return self._by_spelling.get(word)

    def completions(self, word: str) -> tuple[str, ...]:
        """The long spellings that begin with a word: vLLM takes the word for the one, if there is only one."""
        return tuple(spelling for spelling in self._by_spelling if word != spelling and spelling.startswith(word))

    def nearest(self, name: str) -> str | None:
        """The long spelling most like a name, dashes included; None when none is alike."""
        known = [spelling for spelling in self._by_spelling if spelling.startswith("--")]
        near = difflib.get_close_matches(f"--{name}", known, n=1, cutoff=0.75)
        return near[0] if near else None
