"""A guard that has imported vLLM, and forks each engine from itself.

Each of vLLM's processes (API server, EngineCore, worker) imports vLLM anew: on two cores about 13 s apiece, most of a
restart. Forked from here none of them does. The engine that runs is the same: the API server's own entry point, given
the same argv. Two things are set so that its children are forked too and OpenMP survives it: the multiprocessing
context (vLLM's CPU platform forces `spawn`), and no OpenMP thread pool may exist before the fork.

Usage: python warm_spare.py GUARD_PY [MODULE …]    (MODULE: further modules worth importing beforehand)
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

_SERVER = "vllm.entrypoints.openai.api_server"
_PRELOAD = (_SERVER, "vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor")
_PRELOAD_CPU = ("vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner", "vllm.v1.attention.backends.cpu_attn")
_PRELOAD_GPU = ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner")


def _load_guard(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("autotune_guard", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise SystemExit(f"cannot load the guard from {path}: no such Python file")
    guard = importlib.util.module_from_spec(spec)
    sys.modules["autotune_guard"] = guard
    spec.loader.exec_module(guard)
    return guard


def _preload(extra: list[str]) -> None:
    for name in _PRELOAD:
        importlib.import_module(name)
    from vllm.platforms import current_platform

    for name in (*(_PRELOAD_CPU if current_platform.is_cpu() else _PRELOAD_GPU), *extra):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def _fork_engine_processes() -> None:
    """Make vLLM fork its EngineCore and workers, wherever it holds the function that chooses the context."""
    system_utils = importlib.import_module("vllm.utils.system_utils")
    real = system_utils.get_mp_context
    forking = multiprocessing.get_context("fork")

    def get_mp_context() -> Any:
        real()  # for what it sets besides
        return forking

    for module in list(sys.modules.values()):
        if vars(module).get("get_mp_context") is real:
            module.get_mp_context = get_mp_context  # type: ignore[attr-defined]


def _become_server(launch: dict[str, Any]) -> None:
    """In the forked child: environment, log and argv of the launch, then vLLM's own entry point."""
    os.environ.clear()
    os.environ.update(launch["env"])
    log = os.open(launch["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["vllm", *launch["argv"]]
    runpy.run_module(_SERVER, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import vLLM, then serve launches as the guard does; `argv` of a launch holds the server's arguments alone."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: warm_spare.py GUARD_PY [MODULE ...]")
    guard = _load_guard(sys.argv[1])
    guard.die_with_parent()
    _preload(sys.argv[2:])
    _fork_engine_processes()

    def fork_server(launch: dict[str, Any]) -> int:
        pid = os.fork()
        if pid != 0:
            return pid
        code = 1
        try:
            guard.prepare_child(launch)
            _become_server(launch)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
        except BaseException:  # noqa: BLE001 (a forked child must never return into the guard's loop)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    guard.run(fork_server)
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and to take down all that was imported costs seconds


if __name__ == "__main__":
    main()
