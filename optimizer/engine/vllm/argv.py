"""Flags as words of a command line: the one place where an `EngineConfig` becomes argv."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from optimizer.core.engine_config import EngineConfig, FlagValue

SERVER_MODULE = "vllm.entrypoints.openai.api_server"


def flag_words(flags: Mapping[str, FlagValue]) -> list[str]:
    """The flags as argv words, in the mapping's order.

    >>> flag_words({"max-num-seqs": 64, "enable-prefix-caching": False, "cudagraph-capture-sizes": [1, 2]})
    ['--max-num-seqs', '64', '--no-enable-prefix-caching', '--cudagraph-capture-sizes', '1', '2']
    """
    words: list[str] = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *(_word(item) for item in value)]
        else:
            words += [f"--{name}", _word(value)]
    return words


def server_arguments(config: EngineConfig, *, port: int, served_model_name: str) -> list[str]:
    """What follows the server's program on the command line; the API key is not among it."""
    return [
        "--model", config.model,
        "--host", "127.0.0.1",
        "--port", str(port),
        "--served-model-name", served_model_name,
        *flag_words(config.flags),
    ]  # fmt: skip


def serve_command(engine_python: str, config: EngineConfig, *, host: str = "127.0.0.1", port: int = 8000) -> list[str]:
    """The command that a person starts this engine with, outside of us: no key, no nonce."""
    head: Sequence[str] = (engine_python, "-m", SERVER_MODULE, "--model", config.model)
    return [*head, *flag_words(config.flags), "--host", host, "--port", str(port)]


def _word(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return str(value)  # of a float the shortest text that gives back the very same number
