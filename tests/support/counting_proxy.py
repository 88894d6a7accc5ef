"""An HTTP proxy on loopback that records requests and may delay them.

It runs in a thread and forwards bytes unchanged, with the client's Host header, which signatures
cover. The clients are other processes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.servers import LOOPBACK

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Iterable, Iterator

_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Request:
    """A request and the interval in which the client waited for its response."""

    method: str
    target: str
    status: int
    start: float
    end: float


@dataclass(slots=True)
class CountingProxy:
    """A running proxy.

    Attributes
    ----------
    url
        Where clients connect.
    delay_seconds
        Delay of each request before it is forwarded.
    requests
        The requests that were answered, in the order of their responses.
    """

    url: str = ""
    delay_seconds: float = 0.0
    requests: list[Request] = field(default_factory=list)

    def take_requests(self) -> list[Request]:
        """Return the requests since the last call."""
        taken, self.requests = self.requests, []
        return taken


def count_sequential(requests: Iterable[Request]) -> int:
    """Count the requests of the longest chain in which each starts after the previous response.

    Concurrent requests count as one if each of them takes longer than the client needs to start
    them all, so delay the requests.
    """
    length, chain_end = 0, float("-inf")
    # The chain that always takes the request with the earliest end is a longest one.
    for request in sorted(requests, key=lambda request: request.end):
        if request.start >= chain_end:
            length, chain_end = length + 1, request.end
    return length


@contextmanager
def counting_proxy(upstream_url: str, delay_seconds: float = 0.0) -> Iterator[CountingProxy]:
    """Run a proxy that forwards to ``upstream_url`` (``http://host:port``)."""
    proxy = CountingProxy(delay_seconds=delay_seconds)
    port = int(upstream_url.rpartition(":")[2])
    loop = asyncio.new_event_loop()
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _Connection(proxy, reader, writer, port).relay_all()
        writer.close()

    async def stop() -> None:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(accept, LOOPBACK, 0, limit=_BLOCK))
    proxy.url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Connection:
    """A connection of a client, with a connection to the server that is kept as long."""

    def __init__(
        self, proxy: CountingProxy, reader: StreamReader, writer: StreamWriter, port: int
    ) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._port = port

    async def relay_all(self) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(
            LOOPBACK, self._port, limit=_BLOCK
        )
        try:
            while True:
                await self._relay(upstream_reader, upstream_writer)
        finally:
            upstream_writer.close()

    async def _relay(self, upstream_reader: StreamReader, upstream_writer: StreamWriter) -> None:
        head = await self._reader.readuntil(b"\r\n\r\n")
        start = time.monotonic()
        if self._proxy.delay_seconds:
            await asyncio.sleep(self._proxy.delay_seconds)
        method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
        upstream_writer.write(head)
        await _copy_body(_parse_headers(head), self._reader, upstream_writer)

        head = await upstream_reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        headers = {} if method == "HEAD" or status in {204, 304} else _parse_headers(head)
        # The body is small or the client reads it anyway: one write, after the time is taken. A
        # client that saw the end of the response could start the next request before that.
        body = _Buffer()
        await _copy_body(headers, upstream_reader, body)
        self._proxy.requests.append(Request(method, target, status, start, time.monotonic()))
        self._writer.write(head + bytes(body.data))
        await self._writer.drain()


class _Buffer:
    """A writer that keeps what is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        pass


def _parse_headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    pairs = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in pairs}


async def _copy_body(
    headers: dict[str, str], reader: StreamReader, writer: StreamWriter | _Buffer
) -> None:
    if headers.get("transfer-encoding") == "chunked":
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            # The last chunk is empty; no client or server here sends trailers.
            writer.write(line + await reader.readexactly(size + 2))
        return
    remaining = int(headers.get("content-length", "0"))
    while remaining:
        block = await reader.read(min(remaining, _BLOCK))
        if not block:
            raise asyncio.IncompleteReadError(b"", remaining)
        writer.write(block)
        await writer.drain()
        remaining -= len(block)
