"""Reads of neighbouring chunks in one request.

Chunks that were packed into one object are asked for one by one, but at the same time. What is
asked for within one turn of the event loop and lies in the same object is fetched together; the
storage joins ranges that are near each other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.keys import chunk_key
from icefloe.model.byte_range import Bounded

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.chunk_payload import ChunkRef
    from icefloe.model.ids import ChunkId
    from icefloe.transaction.transaction import Part


class CoalescedReads:
    """Fetches parts of native chunks for one event loop."""

    def __init__(self, assets: Assets) -> None:
        self._assets = assets
        self._waiting: dict[
            ChunkId, list[tuple[ChunkRef, Part, asyncio.Future[bytes | memoryview]]]
        ] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def fetch(self, ref: ChunkRef, part: Part) -> bytes | memoryview:
        """Fetch bytes of a chunk, together with what others want of the same object."""
        is_whole = part.length == ref.length
        if is_whole and (kept := self._assets.kept_chunk(ref)) is not None:
            return kept
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | memoryview] = loop.create_future()
        batch = self._waiting.setdefault(ref.id, [])
        batch.append((ref, part, answer))
        if len(batch) == 1:
            loop.call_soon(self._send, ref.id)
        data = await answer
        if is_whole:
            self._assets.keep_chunk(ref, data)
        return data

    def _send(self, chunk_id: ChunkId) -> None:
        task = asyncio.get_running_loop().create_task(
            self._fetch(chunk_id, self._waiting.pop(chunk_id))
        )
        self._tasks.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _fetch(
        self,
        chunk_id: ChunkId,
        batch: list[tuple[ChunkRef, Part, asyncio.Future[bytes | memoryview]]],
    ) -> None:
        try:
            if len(batch) == 1:
                ref, part, _ = batch[0]
                found = [await self._assets.fetch_chunk_part_async(ref, part.start, part.length)]
            else:
                ranges = [
                    Bounded(ref.offset + part.start, ref.offset + part.start + part.length)
                    for ref, part, _ in batch
                ]
                key = chunk_key(chunk_id)
                try:
                    found = await asyncio.to_thread(self._assets.storage.get_ranges, key, ranges)
                except InvalidInputError as error:
                    raise FormatError(error.message, file=key) from error
        except BaseException as error:  # noqa: BLE001 - it belongs to those who wait
            for _, _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, _, answer), data in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(data)
