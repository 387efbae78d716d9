"""A study on a live vLLM whose processes are killed one after the other, and what it makes of that."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from tests.driving import GONE_WITHIN_S, Driver, Running

RUN = ("run", "--space", "soak.yaml", "--trials", "100")
START_LIMIT_S = 240.0
"""A cold start imports vLLM three times over; on two slow cores that takes a minute or more."""
ENDED_LIMIT_S = 20.0
"""vLLM looks every 5 s whether its EngineCore lives; then there are the optimizer's patience and its SIGKILL."""
API_SERVER, ENGINE_CORE, WORKER, OPTIMIZER = "API server", "EngineCore", "worker", "optimizer"
VICTIMS = (
    *(API_SERVER, ENGINE_CORE, OPTIMIZER, WORKER),
    *(API_SERVER, OPTIMIZER, ENGINE_CORE, WORKER, OPTIMIZER, API_SERVER),
)
"""Never three within one run: the third fault of the host in a row would end the study, and rightly so."""

CAUSED_BY_REMAINS = ("port_taken", "gpu_busy", "kv_cache_too_small", "out_of_memory", "startup_timeout", "engine_hang")
"""What an engine fails of when an earlier one still holds its port or its memory."""


def write_space(folder: Path, project_root: Path) -> None:
    """The built-in space with the shortest window, and a limit that no trial misses and few requests decide."""
    space = yaml.safe_load((project_root / "search_spaces" / "builtin" / "tiny-cpu.yaml").read_text())
    space["name"] = "soak"
    space["workload"]["window"] = {"min_s": 4, "max_s": 60, "min_requests": 100}
    space["slos"] = ["p50_e2e_ms=600000"]
    (folder / "soak.yaml").write_text(yaml.safe_dump(space, sort_keys=False))


@dataclass(frozen=True)
class Family:
    """The processes of one engine, by their part in it."""

    members: dict[str, psutil.Process]
    others: tuple[psutil.Process, ...]

    @property
    def all(self) -> tuple[psutil.Process, ...]:
        return (*self.members.values(), *self.others)

    def alive(self) -> list[psutil.Process]:
        """Members that still live; a later process of the same pid is none of them."""
        return [process for process in self.all if process.is_running() and not _is_zombie(process)]


def engine_of(optimizer: psutil.Process) -> Family:
    """The engine that runs below an optimizer. Its API server is the one that leads a session and has children."""
    (guard,) = optimizer.children()
    (server,) = guard.children()
    below = server.children(recursive=True)
    named = {ENGINE_CORE: "VLLM::EngineCore", WORKER: "VLLM::Worker"}
    members = {API_SERVER: server}
    for part, name in named.items():
        members[part] = next(process for process in below if name in _names(process))
    return Family(members, tuple(process for process in below if process not in members.values()))


def named_vllm(since_s: float, driver: Driver) -> list[str]:
    """Living processes that call themselves VLLM, are not older than the soak, and carry its mark or no environment."""
    ours = {one.pid for one in driver.left()}
    found = []
    for process in psutil.process_iter(["pid", "create_time"]):
        with suppress(psutil.Error):
            is_ours = process.pid in ours or not process.environ()
            if process.create_time() > since_s and is_ours and "VLLM" in _names(process) and not _is_zombie(process):
                found.append(f"{process.pid} {_names(process)}")
    return found


def wait_for_count(run: Running, words: str, count: int, *, limit_s: float) -> float:
    """Waits until it has said `words` so often; the seconds that took."""
    begun_s = time.monotonic()
    while run.text.count(words) < count:
        assert time.monotonic() - begun_s < limit_s, f"{words!r} was not said {count} times:\n{run.text}"
        assert run.process.poll() is None, f"it ended:\n{run.text}"
        time.sleep(0.05)
    return time.monotonic() - begun_s


def until_gone(driver: Driver, processes: Sequence[psutil.Process], *, limit_s: float) -> float:
    """Seconds until none of these processes lives."""
    family = Family({}, tuple(processes))
    return driver.wait_until(lambda: not family.alive(), "processes of the engine live on", limit_s=limit_s)


def end_of(victim: str, run: Running, family: Family, driver: Driver) -> float:
    """Kills it with SIGKILL; the seconds until all that has to go with it is gone."""
    if victim != OPTIMIZER:
        family.members[victim].kill()
        return until_gone(driver, family.all, limit_s=ENDED_LIMIT_S)
    below = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    return until_gone(driver, below, limit_s=GONE_WITHIN_S)


def recorded_failures(folder: Path) -> list[str]:
    """Kind and detail of every attempt that failed, in order."""
    with closing(sqlite3.connect(folder / "autotune" / "studies.db")) as database:
        rows = database.execute("SELECT failure FROM autotune_attempts WHERE failure != 'null' ORDER BY id").fetchall()
    failures = [json.loads(text) for (text,) in rows]
    return [f"{one['kind']} ({one['blame']}): {one['detail']}" for one in failures]


def _names(process: psutil.Process) -> str:
    return f"{process.name()} {' '.join(process.cmdline())}"


def _is_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True
