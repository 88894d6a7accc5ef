"""Coalesces reads of chunks in the same object, a packed chunk file or a virtual file.

Slices of an object that are requested in the same iteration of the event loop are fetched together:
neighbouring ranges share a request. If a virtual chunk cannot be read, only its read fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from icefloe.model.chunk_payload import ChunkRef, VirtualChunkRef

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from icefloe.assets.chunk_reader import ChunkReader
    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.transaction.chunk_slice import ChunkSlice


class _Request(NamedTuple):
    part: ChunkSlice
    future: asyncio.Future[bytes | memoryview]


class CoalescedReads:
    """Fetches slices of chunks for one event loop."""

    def __init__(self, native: ChunkReader, virtual: VirtualChunks) -> None:
        self._native = native
        self._virtual = virtual
        self._pending: dict[Hashable, list[_Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def fetch(self, part: ChunkSlice) -> bytes | memoryview:
        """Fetch bytes of a chunk, together with other pending slices of the same object."""
        payload = part.payload
        if isinstance(payload, VirtualChunkRef):
            # The checksum is a condition of the request: chunks that share one must agree on it.
            return await self._enqueue((payload.location, payload.checksum), part)
        cached = self._native.find_cached(payload, part.length)
        return await self._enqueue(payload.id, part) if cached is None else cached

    async def _enqueue(self, object_key: Hashable, part: ChunkSlice) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | memoryview] = loop.create_future()
        batch = self._pending.setdefault(object_key, [])
        batch.append(_Request(part, future))
        if len(batch) == 1:
            loop.call_soon(self._send, object_key)
        return await future

    def _send(self, object_key: Hashable) -> None:
        batch = self._pending.pop(object_key)
        task = asyncio.get_running_loop().create_task(self._fulfill(batch))
        self._tasks.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _fulfill(self, batch: list[_Request]) -> None:
        results: Sequence[bytes | memoryview | BaseException]
        try:
            results = await self._fetch([request.part for request in batch])
        except BaseException as error:  # noqa: BLE001 - raised in the callers of `fetch`
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _fetch(
        self, parts: Sequence[ChunkSlice]
    ) -> Sequence[bytes | memoryview | BaseException]:
        """Fetch slices of one object: all native, or all virtual."""
        native = [
            (part.payload, part.start, part.length)
            for part in parts
            if isinstance(part.payload, ChunkRef)
        ]
        if native:
            return await self._native.fetch_many_async(native)
        virtual = [
            (part.payload, part.start, part.length)
            for part in parts
            if isinstance(part.payload, VirtualChunkRef)
        ]
        if len(virtual) == 1:
            return [await self._virtual.fetch_async(*virtual[0])]
        return await self._virtual.fetch_many_async(virtual)
