"""Coalesced reads of chunks that lie in one object.

Slices that are requested within one turn of the event loop and lie in the same object, a packed
chunk file or a virtual file, are fetched together: neighbouring ranges share a request. If one
virtual chunk cannot be read, only its read fails.
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
    answer: asyncio.Future[bytes | memoryview]


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
            # A checksum is a condition of the request: chunks with different ones go apart.
            return await self._enqueue((payload.location, payload.checksum), part)
        cached = self._native.find_cached(payload, part.length)
        return await self._enqueue(payload.id, part) if cached is None else cached

    async def _enqueue(self, where: Hashable, part: ChunkSlice) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | memoryview] = loop.create_future()
        batch = self._pending.setdefault(where, [])
        batch.append(_Request(part, answer))
        if len(batch) == 1:
            loop.call_soon(self._send, where)
        return await answer

    def _send(self, where: Hashable) -> None:
        batch = self._pending.pop(where)
        task = asyncio.get_running_loop().create_task(self._answer(batch))
        self._tasks.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, batch: list[_Request]) -> None:
        results: Sequence[bytes | memoryview | BaseException]
        try:
            results = await self._fetch([request.part for request in batch])
        except BaseException as error:  # noqa: BLE001 - raised in the callers of `fetch`
            results = [error] * len(batch)
        for (_, answer), result in zip(batch, results, strict=True):
            if answer.done():
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    async def _fetch(
        self, parts: Sequence[ChunkSlice]
    ) -> Sequence[bytes | memoryview | BaseException]:
        """Fetch slices that lie in one object: all native, or all virtual."""
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
