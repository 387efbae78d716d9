"""Who had the memory for want of which the kernel killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optimizer.engine import memory_kill
from optimizer.engine.memory_kill import MemoryHistory, MemoryKill
from optimizer.host.memory_left import MemoryLeft

GIB = 1024**3
Seen = Callable[[float, int | None], None]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Sets what the kernel shows: GiB that are left, and kills so far."""

    def show(gib: float, kills: int | None) -> None:
        monkeypatch.setattr(memory_kill, "memory_left", lambda: MemoryLeft(int(gib * GIB), kills))

    return show


def test_without_a_new_kill_the_kernel_did_nothing(now: Seen) -> None:
    now(20, 3)
    watch = MemoryHistory().before_launch()
    assert watch.look() is None


def test_kills_that_are_not_counted_are_not_guessed(now: Seen) -> None:
    now(20, None)
    watch = MemoryHistory().before_launch()
    now(20, 4)
    assert watch.look() is None


def test_an_engine_that_had_the_host_to_itself_took_the_memory(now: Seen) -> None:
    now(20, 3)
    watch = MemoryHistory().before_launch()
    now(19.5, 5)
    kill = watch.look()
    assert kill == MemoryKill(2, int(19.5 * GIB), 20 * GIB)
    assert not kill.by_others


def test_memory_that_others_took_meanwhile_is_not_the_engines(now: Seen) -> None:
    now(20, 3)
    watch = MemoryHistory().before_launch()
    now(9, 4)
    kill = watch.look()
    assert kill is not None
    assert kill.by_others


def test_a_host_that_was_short_already_is_known_by_its_earlier_launches(now: Seen) -> None:
    history = MemoryHistory()
    now(20, 3)
    history.before_launch()
    now(8, 3)
    watch = history.before_launch()
    now(8, 4)
    kill = watch.look()
    assert kill is not None
    assert kill.by_others
