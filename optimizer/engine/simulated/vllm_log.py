"""Log lines and failure texts in vLLM's words, so that whatever reads a real engine's log reads this one alike."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

GIB = 1024**3

API_SERVER = "APIServer"
ENGINE_CORE = "EngineCore"

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ENGINE_DEAD_ERROR = f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"
CORE_FAILED_TO_START = "EngineCore failed to start."
CORE_FATAL = "EngineCore encountered a fatal error."
CORE_INIT_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
ADDRESS_IN_USE = "OSError: [Errno 98] Address already in use"
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB "
    "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 15.48 GiB memory in use."
)
NO_CACHE_MEMORY = (
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine "
    "(this flag also controls CPU memory reservation on the CPU backend, despite its name)."
)
RAISE_OR_SHRINK = (
    "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
    "`max_model_len` when initializing the engine."
)


@dataclass(frozen=True, slots=True)
class StartupFailure:
    """Why the simulated engine does not start: the last line of the traceback that vLLM would print."""

    text: str


def silence() -> None:
    """From here on this process and all that it forks write nothing, not even a traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def log(process: str, message: str, *, level: str = "INFO", origin: str = "simulated.py:1") -> None:
    """Writes one line as vLLM's logger does; `process` is `APIServer` or `EngineCore`."""
    _write(process, f"{level} {time.strftime('%m-%d %H:%M:%S')} [{origin}] {message}")


def log_uvicorn(message: str) -> None:
    """Writes one line as uvicorn does under vLLM."""
    _write(API_SERVER, f"INFO:     {message}")


def log_traceback(process: str, error: str) -> None:
    """Writes a traceback that ends in `error`."""
    _write(process, "ERROR Traceback (most recent call last):")
    for line in error.splitlines():
        _write(process, f"ERROR {line}")


def _write(process: str, text: str) -> None:
    sys.stdout.write(f"({process} pid={os.getpid()}) {text}\n")
    sys.stdout.flush()


def kv_cache_size(pool_tokens: int, max_model_len: int, max_concurrency: float) -> str:
    """The line that states the KV pool."""
    return (
        f"GPU KV cache size: {pool_tokens:,} tokens, Maximum concurrency for {max_model_len:,} tokens per request: "
        f"{max_concurrency:.2f}x"
    )


def kv_cache_too_small(
    max_model_len: int, needed_bytes: int, available_bytes: int, fitting_tokens: int
) -> StartupFailure:
    """The failure when the pool holds no sequence of `max_model_len`; `fitting_tokens` is what it does hold."""
    estimate = ""
    if fitting_tokens > 0:
        estimate = f"Based on the available memory, the estimated maximum model length is {fitting_tokens}. "
    return StartupFailure(
        f"ValueError: To serve at least one request with the model's max seq len ({max_model_len}), "
        f"({needed_bytes / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({available_bytes / GIB:.2f} GiB). {estimate}{RAISE_OR_SHRINK}"
    )


def device_is_busy(total_bytes: int, utilization: float) -> StartupFailure:
    """The failure when a co-tenant holds half of what this engine is to use."""
    wanted = total_bytes * utilization
    return StartupFailure(
        f"ValueError: Free memory on device cuda:0 ({wanted / 2 / GIB:.2f}/{total_bytes / GIB:.2f} GiB) on startup is "
        f"less than desired GPU memory utilization ({utilization}, {wanted / GIB:.2f} GiB). Decrease GPU memory "
        f"utilization or reduce GPU memory used by other processes."
    )


def validation_error(config_class: str, message: str) -> StartupFailure:
    """A refused value, in the form of pydantic's `ValidationError`."""
    return StartupFailure(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config_class}\n"
        f"  Value error, {message} [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]"
    )
