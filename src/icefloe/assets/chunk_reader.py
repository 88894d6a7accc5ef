"""Reads native chunks, with a cache, and detects chunk files that are too short.

Every read of a native chunk goes through `ChunkReader`. Only complete chunks are cached.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from icefloe.assets.cache import Cache
from icefloe.errors import FormatError, InvalidInputError
from icefloe.model.byte_range import Bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.format.generation import FileKind
    from icefloe.model.chunk_payload import ChunkRef
    from icefloe.storage.interface import Storage


class ChunkReader:
    """Reads the native chunks of one repository; ``max_cached_bytes=0`` disables the cache."""

    def __init__(self, storage: Storage, files: FileKind, max_cached_bytes: int) -> None:
        self._storage = storage
        self._files = files
        self._cache: Cache[ChunkRef, bytes | memoryview] | None = (
            Cache(max_cached_bytes, len) if max_cached_bytes > 0 else None
        )

    def fetch(self, ref: ChunkRef, start: int = 0, length: int | None = None) -> bytes | memoryview:
        """Fetch a chunk, or ``length`` bytes of it from ``start``.

        Raises `FormatError` if the chunk file ends before the referenced range.
        """
        if length is None:
            length = ref.length
        if self._cache is None or length != ref.length:
            return self._fetch_range(ref, start, length)
        return self._cache.get(ref, lambda: self._fetch_range(ref, 0, ref.length))

    def format_key(self, ref: ChunkRef) -> str:
        """Return the key of the file of a chunk."""
        return self._files.format_key(ref.id)

    def find_cached(self, ref: ChunkRef, length: int) -> bytes | memoryview | None:
        """Return a cached chunk, or None; always None if ``length`` is only a part of it."""
        return None if self._cache is None or length != ref.length else self._cache.find(ref)

    async def fetch_many_async(
        self, slices: Sequence[tuple[ChunkRef, int, int]]
    ) -> Sequence[bytes | memoryview]:
        """Fetch slices (chunk, start, length) of chunks in one file, with one call to the storage.

        Raises the errors of `fetch`. Does not read the cache: callers use `find_cached` first.
        """
        key = self.format_key(slices[0][0])
        results: Sequence[bytes | memoryview]
        try:
            if len(slices) == 1:
                ref, start, length = slices[0]
                results = [await self._storage.get_bytes_async(key, ref.offset + start, length)]
            else:
                ranges = [
                    Bounded(ref.offset + start, ref.offset + start + length)
                    for ref, start, length in slices
                ]
                results = await asyncio.to_thread(self._storage.get_ranges, key, ranges)
        except InvalidInputError as error:
            raise _short_file_error(key, error) from error
        if self._cache is not None:
            for (ref, _, length), data in zip(slices, results, strict=True):
                if length == ref.length:
                    self._cache.put(ref, data)
        return results

    def _fetch_range(self, ref: ChunkRef, start: int, length: int) -> bytes | memoryview:
        key = self.format_key(ref)
        try:
            return self._storage.get_bytes(key, ref.offset + start, length)
        except InvalidInputError as error:
            raise _short_file_error(key, error) from error


def _short_file_error(key: str, error: InvalidInputError) -> FormatError:
    # The caller passed a valid range: the manifest refers to bytes that the file does not have.
    return FormatError(error.message, file=key)
