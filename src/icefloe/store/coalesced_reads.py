"""Reads of neighbouring chunks in one request.

Chunks that lie in one object, a pack of the repository or a file elsewhere, are asked for one by
one, but at the same time. What is asked for within one turn of the event loop and lies in the same
object is fetched together; ranges that are near each other share a request. Where only one of them
cannot be had, only that one fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.keys import chunk_key
from icefloe.model.byte_range import Bounded
from icefloe.model.chunk_payload import ChunkRef, VirtualChunkRef

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from icefloe.assets import Assets
    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.transaction.transaction import ChunkSlice


class _Asked(NamedTuple):
    part: ChunkSlice
    answer: asyncio.Future[bytes | memoryview]


class CoalescedReads:
    """Fetches parts of chunks for one event loop."""

    def __init__(self, assets: Assets, virtual: VirtualChunks) -> None:
        self._assets = assets
        self._virtual = virtual
        self._waiting: dict[Hashable, list[_Asked]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def fetch(self, part: ChunkSlice) -> bytes | memoryview:
        """Fetch bytes of a chunk, together with what others want of the same object."""
        payload = part.payload
        if isinstance(payload, VirtualChunkRef):
            # A checksum is a condition of the request, so that chunks with another go alone.
            return await self._ask((payload.location, payload.checksum), part)
        is_whole = part.length == payload.length
        if is_whole and (kept := self._assets.get_cached_chunk(payload)) is not None:
            return kept
        data = await self._ask(payload.id, part)
        if is_whole:
            self._assets.cache_chunk(payload, data)
        return data

    async def _ask(self, where: Hashable, part: ChunkSlice) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | memoryview] = loop.create_future()
        batch = self._waiting.setdefault(where, [])
        batch.append(_Asked(part, answer))
        if len(batch) == 1:
            loop.call_soon(self._send, where)
        return await answer

    def _send(self, where: Hashable) -> None:
        batch = self._waiting.pop(where)
        task = asyncio.get_running_loop().create_task(self._answer(batch))
        self._tasks.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, batch: list[_Asked]) -> None:
        try:
            found = await self._fetch([one.part for one in batch])
        except BaseException as error:  # noqa: BLE001 - it belongs to those who wait
            found = [error] * len(batch)
        for (_, answer), data in zip(batch, found, strict=True):
            if answer.done():
                continue
            if isinstance(data, BaseException):
                answer.set_exception(data)
            else:
                answer.set_result(data)

    async def _fetch(
        self, parts: Sequence[ChunkSlice]
    ) -> Sequence[bytes | memoryview | BaseException]:
        """Fetch parts of chunks that lie in one object."""
        first = parts[0]
        if isinstance(first.payload, ChunkRef):
            return await self._fetch_native(parts)
        if len(parts) == 1:
            return [await self._virtual.fetch_async(first.payload, first.start, first.length)]
        wanted = [
            (part.payload, part.start, part.length)
            for part in parts
            if isinstance(part.payload, VirtualChunkRef)
        ]
        return await self._virtual.fetch_many_async(wanted)

    async def _fetch_native(self, parts: Sequence[ChunkSlice]) -> Sequence[bytes | memoryview]:
        refs = [part.payload for part in parts if isinstance(part.payload, ChunkRef)]
        if len(parts) == 1:
            part = parts[0]
            return [await self._assets.fetch_chunk_part_async(refs[0], part.start, part.length)]
        starts = [ref.offset + part.start for ref, part in zip(refs, parts, strict=True)]
        ranges = [
            Bounded(start, start + part.length) for start, part in zip(starts, parts, strict=True)
        ]
        key = chunk_key(refs[0].id)
        try:
            return await asyncio.to_thread(self._assets.storage.get_ranges, key, ranges)
        except InvalidInputError as error:
            raise FormatError(error.message, file=key) from error
