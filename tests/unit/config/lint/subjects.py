"""Configurations and spaces to be linted, in as few words as tell them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from optimizer.config import parse_serve_command
from optimizer.config.lint import LintSubject, subject_of_command
from optimizer.engine.memory import ModelShape
from optimizer.engine.memory.config_fields import ConfigFields
from optimizer.engine.memory.model_shape import shape_from_config
from optimizer.load import Workload
from optimizer.objectives import OBJECTIVES, parse_slo
from optimizer.search_spaces import GIB, Parameter, SearchSpace

H200 = 139 * GIB
_PARAMETER: TypeAdapter[Parameter] = TypeAdapter(Parameter)

DENSE_14B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""28 GiB of weights and 192 KiB of KV cache a token."""
MOE = DENSE_14B | {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""154 GiB of weights."""
FP8 = DENSE_14B | {"quantization_config": {"quant_method": "fp8"}}


def traffic(
    *,
    in_flight: int = 32,
    prefix: int = 0,
    prompt: int = 512,
    output: int = 128,
    min_s: float = 60.0,
    min_requests: int = 1000,
) -> Workload:
    """A workload of fixed lengths; by default no request is longer than 640 tokens."""
    return Workload.model_validate(
        {
            "name": "w",
            "arrivals": {"kind": "closed_loop", "in_flight": in_flight},
            "shared_prefix": {"prefixes": 1, "tokens": prefix} if prefix else None,
            "prompt_tokens": {"kind": "fixed", "tokens": prompt},
            "output_tokens": {"kind": "fixed", "tokens": output},
            "warmup": {"requests": 1, "max_s": 10},
            "window": {"min_s": min_s, "max_s": 600, "min_requests": min_requests},
        }
    )


def shape(config: dict[str, Any] = DENSE_14B) -> ModelShape:
    """A model's shape from the fields of its `config.json`."""
    return shape_from_config(ConfigFields(config, "config.json"))


def command(text: str, **known: Any) -> LintSubject:
    """One command line, and what is known around it."""
    seen = subject_of_command(parse_serve_command(f"vllm serve org/model {text}", origin="test"))
    return replace(seen, **_parsed(known))


def space(parameters: dict[str, dict[str, Any]], **known: Any) -> LintSubject:
    """A space with these parameters, and what is known around it."""
    searched = {name: _PARAMETER.validate_python(fields) for name, fields in parameters.items()}
    return replace(LintSubject(space=SearchSpace(searched)), **_parsed(known))


def choice(*choices: int | str, **fields: Any) -> dict[str, Any]:
    """A parameter that is one of a few."""
    return {"kind": "choice", "choices": list(choices), **fields}


def switch() -> dict[str, Any]:
    """A parameter that is on or off."""
    return {"kind": "bool"}


def number(kind: str, low: float, high: float, **fields: Any) -> dict[str, Any]:
    """A parameter that ranges over numbers."""
    return {"kind": kind, "low": low, "high": high, **fields}


NGRAM: dict[str, Any] = {
    "kind": "choice",
    "sets": {"none": {}, "ngram": {"speculative-config.method": "ngram"}},
}


def _parsed(known: dict[str, Any]) -> dict[str, Any]:
    """Limits and objective may be given as text."""
    slos = tuple(parse_slo(text, origin="test") for text in known.pop("slos", ()))
    objective = known.pop("objective", None)
    return {**known, "slos": slos, "objective": None if objective is None else OBJECTIVES[objective]}
