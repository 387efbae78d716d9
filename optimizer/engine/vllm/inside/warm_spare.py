"""A guard that has imported vLLM, and forks each engine from itself.

Each of vLLM's processes (API server, EngineCore, worker) imports vLLM anew: on two cores about 13 s apiece, most of a
restart. Forked from here none of them does. The engine that runs is the same: the API server's own entry point, given
the same argv. Two things are set so that its children are forked too and OpenMP survives it: the multiprocessing
context (vLLM's CPU platform forces `spawn`), and no OpenMP thread pool may exist before the fork. On the CPU a third is
done, for vLLM takes its worker's resident memory off the KV pool: see `_map_library_pages_in_children`.

Usage: python warm_spare.py GUARD_PY [MODULE …]    (MODULE: further modules worth importing beforehand)
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import importlib.util
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_SERVER = "vllm.entrypoints.openai.api_server"
_CLI = "vllm.entrypoints.cli.main"
_PRELOAD = (_SERVER, "vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor")
_PRELOAD_CPU = ("vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner", "vllm.v1.attention.backends.cpu_attn")
_PRELOAD_GPU = ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner")
_MADV_POPULATE_READ = 22
"""Since Linux 5.14: maps the pages of a range as if each had been read (madvise(2))."""
_PAGEMAP_ENTRY_BYTES = 8


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
    for name in (*(_PRELOAD_CPU if _is_cpu() else _PRELOAD_GPU), *extra):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


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


def _let_children_name_themselves() -> None:
    """Have setproctitle find the place of this process's title now, and call it what it is.

    It looks for that place when it is first used, next to the environment. In an engine, whose environment has been
    replaced by then, it would find nothing, and `VLLM::EngineCore` would go by the name of the spare.
    """
    if importlib.util.find_spec("setproctitle") is not None:
        importlib.import_module("setproctitle").setproctitle("vllm-autotune warm_spare.py")


def _map_library_pages_in_children() -> None:
    """Have every child map the pages of libraries that this process has in use, as if it had imported them itself.

    A fork leaves page tables of files out, since a child can fault them in. Until it has, it looks smaller than a
    worker that did the imports: by 0.17 GiB, which vLLM would add to the KV pool of a forked engine.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    runs = list(_resident_file_runs())
    if runs and madvise(*runs[0], _MADV_POPULATE_READ) != 0 and ctypes.get_errno() == errno.EINVAL:
        sys.stderr.write("this kernel cannot map pages ahead: KV pools are larger than those of engines started cold\n")
        return

    def populate() -> None:
        for address, length in runs:
            madvise(address, length, _MADV_POPULATE_READ)  # of a range that is unmapped by now, nothing comes

    os.register_at_fork(after_in_child=populate)


def _resident_file_runs() -> Iterator[tuple[int, int]]:
    """Address and length in bytes of each run of pages that this process has mapped from a file and used."""
    page = os.sysconf("SC_PAGE_SIZE")
    with Path("/proc/self/maps").open() as maps, Path("/proc/self/pagemap").open("rb") as pagemap:
        for line in maps.readlines():
            span, mode, _, _, inode, *_ = line.split(maxsplit=5)
            if inode == "0" or not mode.startswith("r"):
                continue
            start, end = (int(address, 16) for address in span.split("-"))
            pagemap.seek(start // page * _PAGEMAP_ENTRY_BYTES)
            entries = pagemap.read((end - start) // page * _PAGEMAP_ENTRY_BYTES)
            # The highest bit of an entry, in its last byte on the little-endian CPUs that vLLM knows: it is present.
            present = bytes(entry >> 7 for entry in entries[_PAGEMAP_ENTRY_BYTES - 1 :: _PAGEMAP_ENTRY_BYTES])
            for run in re.finditer(b"\x01+", present):
                yield start + run.start() * page, len(run[0]) * page


def _become_server(launch: dict[str, Any]) -> None:
    """In the forked child: environment, log and argv of the launch, then vLLM's own entry point."""
    os.environ.clear()
    os.environ.update(launch["env"])
    tempfile.tempdir = None  # remembered from the spare; this engine's TMPDIR is another
    log = os.open(launch["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["vllm", *launch["argv"]]
    # `serve MODEL …` are words of vLLM's command line, `--model MODEL …` those of its server module.
    module = _CLI if launch["argv"][:1] == ["serve"] else _SERVER
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import vLLM, then serve launches as the guard does; `argv` of a launch holds the server's arguments alone."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: warm_spare.py GUARD_PY [MODULE ...]")
    guard = _load_guard(sys.argv[1])
    guard.die_with_parent()
    _preload(sys.argv[2:])
    _fork_engine_processes()
    _let_children_name_themselves()
    if _is_cpu():
        _map_library_pages_in_children()

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
