"""Speculative decoding: what the flags ask for, what a draft costs, and how much of it is accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.engine.simulated.vllm_log import StartupFailure, validation_error

_PASS_S: Mapping[str, float] = {
    "ngram": 20e-6,
    "ngram_gpu": 10e-6,
    "suffix": 20e-6,
    "eagle": 0.4e-3,
    "eagle3": 0.4e-3,
    "mtp": 0.4e-3,
    "dflash": 0.4e-3,
    "dspark": 0.4e-3,
    "custom_class": 0.4e-3,
    "draft_model": 1.2e-3,
}
"""Seconds a step spends on each draft token it proposes, by method: a look-up, one layer, or a fifth of the model.
Assumed, like all of `step_time`; scoring the drafts comes on top."""
_JSON_FLAG = "speculative-config"
_SHORT_FLAGS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafts of a fixed length for every decoding sequence.

    Attributes:
        tokens: Draft tokens for each sequence and step.
        pass_s: Seconds that one position of the draft costs a step.
    """

    method: str
    tokens: int
    pass_s: float


def parse_speculation(flags: Mapping[str, object]) -> Speculation | StartupFailure | None:
    """Reads `--speculative-config` (JSON or dotted) and `--spec-*`; None without them."""
    settings: dict[str, object] = {}
    text = flags.get(_JSON_FLAG)
    if text is not None:
        try:
            settings = dict(json.loads(str(text)))
        except (ValueError, TypeError):
            return validation_error("SpeculativeConfig", f"Value {text} cannot be converted to <function loads>.")
    settings |= {
        name.removeprefix(f"{_JSON_FLAG}."): value for name, value in flags.items() if name.startswith(f"{_JSON_FLAG}.")
    }
    settings |= {key: flags[name] for name, key in _SHORT_FLAGS.items() if name in flags}
    return _checked(settings) if settings else None


def _checked(settings: Mapping[str, object]) -> Speculation | StartupFailure:
    method = settings.get("method") or ("draft_model" if settings.get("model") else None)
    if method not in _PASS_S:
        return validation_error("SpeculativeConfig", f"Unsupported speculative method: {method!r}")
    try:
        tokens = int(str(settings.get("num_speculative_tokens")))
    except ValueError:
        tokens = 0
    if tokens < 1:
        return validation_error("SpeculativeConfig", "num_speculative_tokens must be provided and greater than zero")
    return Speculation(str(method), tokens, _PASS_S[str(method)])
