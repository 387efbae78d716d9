"""The streaming client: sends planned requests to one endpoint and traces what comes of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from optimizer.core.endpoint import EngineEndpoint
from optimizer.load.client.answer import AnswerReader
from optimizer.load.client.connection import ConnectionPool
from optimizer.load.client.request_bytes import RequestWriter
from optimizer.load.client.trace import UNFINISHED, Arrivals, RequestTrace
from optimizer.load.failure import StreamBroken
from optimizer.load.planned import PlannedRequest

__all__ = ["UNFINISHED", "Arrivals", "LoadClient", "RequestTrace", "open_client"]


class LoadClient:
    """Sends requests to one endpoint, any number at a time; `open_client` makes one."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self._writer = RequestWriter(endpoint)
        self._pool = ConnectionPool(self._writer.host, self._writer.port, tls=self._writer.tls)

    async def stream(self, request: PlannedRequest, trace: RequestTrace) -> None:
        """Sends one request and writes into `trace` what comes of it; trouble with the answer ends in `trace.error`.

        Cancelling it closes the connection, by which the engine learns that nobody waits any more.
        """
        written = self._writer.write(request)
        reader = AnswerReader(request, trace)
        trace.sent_s = time.monotonic()
        try:
            connection = await self._pool.take()
            try:
                await connection.exchange(written, reader)
            finally:
                self._pool.give_back(connection)
        except StreamBroken as broken:
            trace.error = str(broken)
            trace.ended_s = time.monotonic()

    async def close(self) -> None:
        """Closes every connection."""
        await self._pool.close()


@asynccontextmanager
async def open_client(endpoint: EngineEndpoint) -> AsyncIterator[LoadClient]:
    """A client for `endpoint`, without a limit on connections, and without one on how long an answer may take.

    Raises:
        InputError: The endpoint's address is no http(s) URL.
    """
    client = LoadClient(endpoint)
    try:
        yield client
    finally:
        await client.close()
