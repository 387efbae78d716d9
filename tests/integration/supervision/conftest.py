"""A guard with what it starts, as real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from optimizer.engine import launch as launch_module
from optimizer.host.supervisor import LaunchSpec, SupervisedProcess, Supervisor
from tests.integration.supervision.helpers import Launch, Spawn, launching, logged


@pytest.fixture
def guard_log(tmp_path: Path) -> Iterator[Path]:
    """Where a guard would complain; by the end of a test it has not."""
    log = tmp_path / "guard.log"
    yield log
    assert log.read_text() == ""


@pytest.fixture
def guard_command() -> Sequence[str] | None:
    """What the guard is started by; a test may want another one than the plain guard."""
    return None


@pytest_asyncio.fixture
async def supervisor(guard_log: Path, guard_command: Sequence[str] | None) -> AsyncIterator[Supervisor]:
    running = await Supervisor.start(log=guard_log, command=guard_command)
    yield running
    await running.close()


@pytest.fixture
def spawn(supervisor: Supervisor, tmp_path: Path) -> Spawn:
    """Starts a shell script under the guard, and returns once it has said `up`."""

    async def spawning(script: str, **more: Any) -> SupervisedProcess:
        log = tmp_path / "engine.log"
        log.unlink(missing_ok=True)
        spec: dict[str, Any] = {"argv": ["sh", "-c", script], "env": {"PATH": "/usr/bin:/bin"}, "log": log} | more
        process = await supervisor.launch(LaunchSpec(**spec))
        if "echo up" in script:
            await logged(log, "up")
        return process

    return spawning


@pytest.fixture
def launch(supervisor: Supervisor, tmp_path: Path) -> Launch:
    return launching(supervisor, tmp_path)


@pytest.fixture(autouse=True)
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the product has patience: on a loaded machine an engine that obeys takes its time."""
    monkeypatch.setattr(launch_module, "_STOP_GRACE_S", 20.0)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is tested by what comes after it, not by its length."""
    monkeypatch.setattr(launch_module, "_STOP_GRACE_S", 0.3)
