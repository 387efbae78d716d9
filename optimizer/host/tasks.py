"""Work that a watcher may break off, and work that nobody may."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


async def unless(alarm: Coroutine[Any, Any, NoReturn], work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with `alarm` beside it.

    Args:
        alarm: Raises when the work is not to go on, and otherwise never ends.
        work: What is wanted.

    Returns:
        What the work returns. Neither runs on when this returns or raises, whatever the reason.

    Raises:
        BaseException: What the alarm raised, which counts more than what the work raised meanwhile; or else what the
            work raised.
    """
    watching, working = asyncio.create_task(alarm), asyncio.create_task(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(watching, working, return_exceptions=True)


async def to_its_end(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Await work that must not be cut short and is bounded by itself: launching an engine, stopping it.

    Returns:
        Its result, and the cancellation that came meanwhile, for the caller to raise once it has tidied up.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    return task.result(), cancelled
