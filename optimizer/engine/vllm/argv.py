"""Flags as words of a command line: the one place where an `EngineConfig` becomes argv."""

from __future__ import annotations

import json
from collections.abc import Mapping

from optimizer.core.engine_config import EngineConfig, FlagValue

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
CLI_MODULE = "vllm.entrypoints.cli.main"
_API_SERVERS = "api-server-count"


def server_module(config: EngineConfig) -> str:
    """The module that starts this engine: vLLM's command line where the number of API servers is given.

    The server's own module ignores `--api-server-count` and runs one; only `vllm serve` obeys it (vLLM 0.32,
    `entrypoints/cli/serve.py`).
    """
    return CLI_MODULE if _API_SERVERS in config.flags else SERVER_MODULE


def api_servers(config: EngineConfig) -> int:
    """How many API servers the engine has."""
    count = config.flags.get(_API_SERVERS)
    return count if isinstance(count, int) else 1


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
        *_model_words(config),
        "--host", "127.0.0.1",
        "--port", str(port),
        "--served-model-name", served_model_name,
        *flag_words(config.flags),
    ]  # fmt: skip


def serve_command(engine_python: str, config: EngineConfig, *, host: str = "127.0.0.1", port: int = 8000) -> list[str]:
    """The command that a person starts this engine with, outside of us: no key, no nonce."""
    head = (engine_python, "-m", server_module(config), *_model_words(config))
    return [*head, *flag_words(config.flags), "--host", host, "--port", str(port)]


def _model_words(config: EngineConfig) -> list[str]:
    return ["serve", config.model] if server_module(config) == CLI_MODULE else ["--model", config.model]


def _word(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return str(value)  # of a float the shortest text that gives back the very same number
