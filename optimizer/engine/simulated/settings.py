"""What the simulated engine runs with: the command line and the environment, checked in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from optimizer.core.errors import InputError
from optimizer.engine.simulated.command_line import CommandLine
from optimizer.engine.simulated.dtypes import DTYPES, KV_CACHE_DTYPES, kv_element_bytes
from optimizer.engine.simulated.model_shape import ModelShape, read_model_shape
from optimizer.engine.simulated.speculation import Speculation, parse_speculation
from optimizer.engine.simulated.vllm_log import GIB, StartupFailure, validation_error

AUTO_LEN = -1
"""`--max-model-len auto`: as long as the pool allows."""
_DEFAULTED = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "block_size",
    "enable_prefix_caching",
    "dtype",
    "kv_cache_dtype",
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The obeyed flags with vLLM's defaults of a card below 70 GiB filled in, and the simulation's own settings.

    Attributes:
        max_model_len: `AUTO_LEN` until the pool is known.
        flags: Every flag that was given and every obeyed one, canonical name to value; faults match against it.
        device_bytes: Memory of the fictitious GPU.
        speed: Divides every step time.
        acceptance: Probability that a draft token is right when those before it are.
    """

    model: str
    served_model_names: tuple[str, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float
    block_size: int
    enable_prefix_caching: bool
    dtype: str
    kv_cache_dtype: str
    speculation: Speculation | None
    stream_interval: int
    force_include_usage: bool
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    skip_tokenizer_init: bool
    api_servers: int
    api_keys: tuple[str, ...]
    dev_mode: bool
    keep_alive_on_engine_death: bool
    shape: ModelShape
    device_bytes: int
    speed: float
    acceptance: float
    flags: Mapping[str, object]

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one element of the KV cache."""
        return kv_element_bytes(self.kv_cache_dtype, self.dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return self.shape.kv_elements_per_token * self.kv_element_bytes

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return self.shape.weight_elements * DTYPES[self.dtype]


def resolve_settings(line: CommandLine, environ: Mapping[str, str]) -> EngineSettings:
    """Fills in defaults, as `vllm serve` does; values are checked by `refusal`.

    Raises:
        InputError: An environment variable of the simulation makes no sense, or the model's config.json is broken.
    """
    given = line.options
    model = str(given.model or given.model_tag or "simulated")
    shape = read_model_shape(model)
    max_model_len = shape.max_position_embeddings if given.max_model_len is None else given.max_model_len
    max_num_batched_tokens = _or(given.max_num_batched_tokens, 2048)
    max_num_seqs = _or(given.max_num_seqs, min(256, max_num_batched_tokens))
    speculation = parse_speculation(line.flags)
    environment_key = environ.get("VLLM_API_KEY")
    settings = EngineSettings(
        model=model,
        served_model_names=tuple(given.served_model_name or [model]),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=_or(given.gpu_memory_utilization, 0.92),
        block_size=_or(given.block_size, 16),
        enable_prefix_caching=_or(given.enable_prefix_caching, True),
        dtype=_or(given.dtype, "auto"),
        kv_cache_dtype=_or(given.kv_cache_dtype, "auto"),
        speculation=speculation if isinstance(speculation, Speculation) else None,
        stream_interval=_or(given.stream_interval, 1),
        force_include_usage=bool(given.enable_force_include_usage),
        kv_cache_memory_bytes=given.kv_cache_memory_bytes,
        num_gpu_blocks_override=given.num_gpu_blocks_override,
        skip_tokenizer_init=bool(given.skip_tokenizer_init),
        api_servers=_or(given.api_server_count, 1),
        api_keys=tuple(given.api_key or ([environment_key] if environment_key else [])),
        dev_mode=environ.get("VLLM_SERVER_DEV_MODE") == "1",
        keep_alive_on_engine_death=environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH") == "1",
        shape=shape,
        device_bytes=int(_positive(environ, "AUTOTUNE_SIM_DEVICE_GIB", 16.0) * GIB),
        speed=_positive(environ, "AUTOTUNE_SIM_SPEED", 1.0),
        acceptance=_acceptance(environ),
        flags=line.flags,
    )
    defaults = {name.replace("_", "-"): getattr(settings, name) for name in _DEFAULTED}
    return replace(settings, flags={**defaults, **line.flags})


def refusal(settings: EngineSettings) -> StartupFailure | None:
    """Why vLLM's own checks refuse these settings, or None."""
    seqs, batched = settings.max_num_seqs, settings.max_num_batched_tokens
    if not 0.0 < settings.gpu_memory_utilization <= 1.0:
        share = settings.gpu_memory_utilization
        return validation_error("CacheConfig", f"GPU memory utilization must be in (0, 1]. Got {share}.")
    if min(seqs, batched, settings.block_size, settings.stream_interval) < 1:
        return validation_error("SchedulerConfig", "Input should be greater than or equal to 1")
    if settings.kv_cache_dtype not in KV_CACHE_DTYPES:
        return validation_error("CacheConfig", f"Invalid kv_cache_dtype: {settings.kv_cache_dtype}")
    if batched < seqs:
        text = f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs})."
        return validation_error("SchedulerConfig", text)
    longest = settings.shape.max_position_embeddings
    if settings.max_model_len != AUTO_LEN and not 1 <= settings.max_model_len <= longest:
        text = (
            f"User-specified max_model_len ({settings.max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={longest} or model_max_length=None in model's config.json)."
        )
        return validation_error("ModelConfig", text)
    speculation = parse_speculation(settings.flags)
    return speculation if isinstance(speculation, StartupFailure) else None


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _positive(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0.0:
        raise InputError(f"{name}={text!r} is no number above 0")
    return value


def _acceptance(environ: Mapping[str, str]) -> float:
    share = _positive(environ, "AUTOTUNE_SIM_ACCEPTANCE", 0.6)
    if share > 1.0:
        raise InputError(f"AUTOTUNE_SIM_ACCEPTANCE={share!r} is no share of 1")
    return share
