"""Connections to one server: each carries one request after another, and takes the time of what comes.

The time is taken where the event loop hands over the bytes, before anything is done with them. Nothing is queued
between socket and trace.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import cast

from optimizer.load.client.answer import AnswerReader
from optimizer.load.client.excerpt import excerpt
from optimizer.load.failure import StreamBroken

CONNECT_TIMEOUT_S = 10.0
READ_BYTES = 64 << 10
CLOSING_TIMEOUT_S = 1.0
"""So long what must follow [DONE], or the text of a refusal, is waited for."""
MAX_IDLE_S = 3.0
"""A connection that idled for longer is not used again: servers close theirs after a while (uvicorn: 5 s), and a
request that crosses with the closing is lost."""


class Connection(asyncio.BufferedProtocol):
    """One connection.

    It reads into memory that all connections of a pool share. The plain protocol of asyncio has the kernel map and
    unmap 256 KiB for each piece that comes, which costs several times as much as reading the piece.

    Args:
        memory: Where to read to; what was read leaves it before the event loop reads again.

    Attributes:
        idle_since_s: When its last answer was complete.
    """

    def __init__(self, memory: memoryview) -> None:
        self.idle_since_s = 0.0
        self._memory = memory
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._over: asyncio.Future[None] | None = None
        self._closing: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Whether it can carry a request."""
        return self._transport is not None and not self._transport.is_closing() and self._reader is None

    async def exchange(self, request: bytes, reader: AnswerReader) -> None:
        """Sends `request` and has `reader` read the answer, to its end.

        Raises:
            StreamBroken: The answer cannot be used, or there is none.
        """
        if self._transport is None:
            raise StreamBroken("the connection was closed before the request left")
        self._reader = reader
        self._over = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._over

    def abort(self) -> None:
        """Closes it at once, whatever is under way."""
        self._reader = None
        if self._closing is not None:
            self._closing.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ---- Called by the event loop --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        """Hands what came on, with the time it came at."""
        now_s = time.monotonic()
        reader = self._reader
        if reader is None:
            self.abort()  # nobody asked for this
            return
        try:
            reader.received(bytes(self._memory[:nbytes]), now_s)
        except StreamBroken as broken:
            self._end(broken)
            return
        if reader.ending:
            if reader.response.complete:
                self._end(None)
            elif self._closing is None:
                self._closing = asyncio.get_running_loop().call_later(CLOSING_TIMEOUT_S, self._time_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the request under way."""
        self._transport = None
        if self._reader is not None:
            try:
                self._reader.closed(exc)
            except StreamBroken as broken:
                self._end(broken)
            else:
                self._end(None)

    def _time_up(self) -> None:
        if self._reader is not None:
            try:
                self._reader.time_up()
            except StreamBroken as broken:
                self._end(broken)
            else:
                self._end(None)

    def _end(self, broken: StreamBroken | None) -> None:
        reader, self._reader = self._reader, None
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if reader is None or not (reader.response.complete and reader.response.reusable):
            self.abort()
        self.idle_since_s = time.monotonic()
        if self._over is not None and not self._over.done():
            if broken is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(broken)


class ConnectionPool:
    """As many connections as requests are under way; one that is free is used again, the latest used first.

    Args:
        host: Name or address of the server.
        port: Its TCP port.
        tls: Whether to speak TLS.
    """

    def __init__(self, host: str, port: int, *, tls: bool) -> None:
        self._host, self._port = host, port
        self._tls = ssl.create_default_context() if tls else None
        self._memory = memoryview(bytearray(READ_BYTES))
        self._idle: deque[Connection] = deque()  # by the time since they idle, the longest first
        self._busy: set[Connection] = set()

    async def take(self) -> Connection:
        """A connection for one request, to be given back after it.

        Raises:
            StreamBroken: There is none to be had.
        """
        connection = self._take_idle() or await self._connect()
        self._busy.add(connection)
        return connection

    def _take_idle(self) -> Connection | None:
        fresh_since_s = time.monotonic() - MAX_IDLE_S
        while self._idle and self._idle[-1].idle_since_s > fresh_since_s:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def give_back(self, connection: Connection) -> None:
        """Keeps it for the next request if it can carry one, and closes it else.

        Connections that have idled for too long are closed two at a time, so that no request waits for hundreds.
        """
        self._busy.discard(connection)
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()
        too_old_s = time.monotonic() - MAX_IDLE_S
        for _ in range(2):
            if self._idle and self._idle[0].idle_since_s < too_old_s:
                self._idle.popleft().abort()

    async def close(self) -> None:
        """Closes every connection at once."""
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        self._busy.clear()
        await asyncio.sleep(0)  # the event loop closes the sockets

    async def _connect(self) -> Connection:
        connection = Connection(self._memory)
        connecting = asyncio.get_running_loop().create_connection(
            lambda: connection, self._host, self._port, ssl=self._tls
        )
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connecting
        except TimeoutError:
            raise StreamBroken(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except (OSError, UnicodeError, OverflowError) as error:
            raise StreamBroken(f"no connection: {excerpt(f'{type(error).__name__}: {error}')}") from None
        return connection
