"""Values of flags that are no more, in today's terms."""

from __future__ import annotations

import json
from typing import Final, TypeAlias

from optimizer.core.engine_config import FlagValue

Settings: TypeAlias = dict[str, FlagValue]
"""Today's flag, dotted keys allowed, to its value."""

_RUNNERS: Final[dict[str, Settings]] = {
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling", "convert": "classify"},
    "auto": {},
}
_ATTENTION: Final = {"XFORMERS": None, "FLASH_ATTN_VLLM_V1": "FLASH_ATTN", "TRITON_ATTN_VLLM_V1": "TRITON_ATTN"}


def number_or_text(text: str) -> FlagValue:
    """A number where it is one."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def json_or_text(text: str) -> FlagValue:
    """JSON where it is an object or a list."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict | list) else text


def draft_model(text: str, _cards: int) -> Settings:
    """`[ngram]` was the way to guess from the prompt; anything else is a model."""
    if text.strip("[]") == "ngram":
        return {"speculative-config.method": "ngram"}
    return {"speculative-config.model": text}


def offloading_gib(text: str, cards: int) -> Settings:
    """Swap space was in GiB a card; today's buffer is in GiB over all cards that share a model. None needs no flag."""
    gib = number_or_text(text)
    if not isinstance(gib, int | float) or gib <= 0:
        return {}
    return {"kv-offloading-size": gib * cards}


def capture_sizes(text: str, _cards: int) -> Settings:
    """A list of sizes, with commas or blanks; a single one was the largest of vLLM's own list."""
    sizes = [number_or_text(word) for word in text.strip("[]").replace(",", " ").split()]
    if len(sizes) == 1:
        return {"max-cudagraph-capture-size": sizes[0]}
    return {"cudagraph-capture-sizes": list(sizes)}


def runner_of_task(text: str, _cards: int) -> Settings:
    """What was a task is a runner, and for models that do not embed or classify by themselves a conversion."""
    return dict(_RUNNERS.get(text, {}))


def guided_backend(text: str, _cards: int) -> Settings:
    """Options behind a colon, as in `xgrammar:no-fallback`, are no more."""
    return {"structured-outputs-config.backend": text.partition(":")[0]}


def attention_backend(text: str, _cards: int) -> Settings:
    """The names without the engine's version; a backend that is gone leaves the choice to vLLM."""
    name = _ATTENTION.get(text, text.removesuffix("_VLLM_V1"))
    return {} if name is None else {"attention-backend": name}
