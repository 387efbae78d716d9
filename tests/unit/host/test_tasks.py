"""Work with an alarm beside it: whichever ends first, neither runs on."""

from __future__ import annotations

import asyncio

import pytest

from optimizer.host.tasks import unless


class Rang(Exception):
    """The alarm."""


class Side:
    """One of the two: ends after some turns of the event loop, and knows how it went."""

    def __init__(self, turns: float, error: BaseException | None = None) -> None:
        self.turns = turns
        self.error = error
        self.ended_as = "never begun"

    async def run(self):
        self.ended_as = "cancelled"
        turn = 0
        while turn < self.turns:
            turn += 1
            await asyncio.sleep(0)
        self.ended_as = "done"
        if self.error is not None:
            raise self.error
        return 7


FOR_EVER = float("inf")


async def test_work_that_ends_first_is_what_is_returned():
    alarm, work = Side(FOR_EVER, Rang()), Side(3)
    assert await unless(alarm.run(), work.run()) == 7
    assert (alarm.ended_as, work.ended_as) == ("cancelled", "done")


async def test_an_alarm_that_rings_first_cancels_the_work():
    alarm, work = Side(3, Rang()), Side(FOR_EVER)
    with pytest.raises(Rang):
        await unless(alarm.run(), work.run())
    assert (alarm.ended_as, work.ended_as) == ("done", "cancelled")


async def test_work_that_fails_is_told():
    with pytest.raises(ZeroDivisionError):
        await unless(Side(FOR_EVER, Rang()).run(), Side(1, ZeroDivisionError()).run())


async def test_of_both_at_once_the_alarm_counts():
    with pytest.raises(Rang):
        await unless(Side(2, Rang()).run(), Side(2, ZeroDivisionError()).run())


async def test_cancelled_from_outside_both_end():
    alarm, work = Side(FOR_EVER, Rang()), Side(FOR_EVER)
    task = asyncio.create_task(unless(alarm.run(), work.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (alarm.ended_as, work.ended_as) == ("cancelled", "cancelled")
