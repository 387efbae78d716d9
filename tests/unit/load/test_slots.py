"""The cap on requests in flight."""

from __future__ import annotations

import asyncio
import time

import pytest

from optimizer.load.slots import Slots


async def test_without_a_cap_nobody_waits() -> None:
    slots = Slots(None)
    assert [await slots.take(5.0) for _ in range(100)] == [5.0] * 100
    slots.give_back()


async def test_who_waits_learns_when_the_slot_came_free() -> None:
    slots = Slots(1)
    assert await slots.take(1.0) == 1.0
    waiting = asyncio.create_task(slots.take(2.0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    before = time.monotonic()
    slots.give_back()
    assert before <= await waiting <= time.monotonic()


async def test_first_come_first_served_and_one_who_gives_up_loses_no_slot() -> None:
    slots = Slots(1)
    await slots.take(0.0)
    first, second, third = (asyncio.create_task(slots.take(0.0)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    slots.give_back()
    await second
    assert not third.done()
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    slots.give_back()
    assert await slots.take(3.0) == 3.0


async def test_a_slot_that_was_given_to_one_who_is_cancelled_goes_on_to_the_next() -> None:
    slots = Slots(1)
    await slots.take(0.0)
    first, second = (asyncio.create_task(slots.take(0.0)) for _ in range(2))
    await asyncio.sleep(0)
    slots.give_back()
    first.cancel()
    async with asyncio.timeout(10):
        await second
