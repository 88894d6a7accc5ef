"""Packs small chunks into shared objects, for fewer requests and files.

A packed chunk gets its reference immediately and is readable from memory. Its bytes are written
when the pack is full, or before anything that refers to it is written.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.ids import ChunkId

if TYPE_CHECKING:
    from icefloe.assets import Assets
    from icefloe.model.config import PackingConfig


class _Pack:
    """Chunks of an object that is not written yet."""

    __slots__ = ("buffer", "id", "lock", "size")

    def __init__(self, chunk_id: ChunkId, buffer: memoryview) -> None:
        self.id = chunk_id
        self.buffer = buffer
        self.size = 0
        self.lock = threading.Lock()

    def add(self, data: bytes | memoryview) -> ChunkRef:
        start, self.size = self.size, self.size + len(data)
        self.buffer[start : self.size] = data
        return ChunkRef(self.id, start, len(data))


class Packer:
    """Packs the small chunks of one session."""

    def __init__(self, assets: Assets, config: PackingConfig) -> None:
        self.max_chunk_bytes = config.effective_max_chunk_bytes
        self._target_bytes = config.effective_target_object_bytes
        self._assets = assets
        self._open: _Pack | None = None
        # A pack stays here until its write succeeds; `finish` repeats failed writes.
        self._unwritten: dict[ChunkId, _Pack] = {}
        # The buffer of the last pack, for the next one: writing to mapped pages is several times
        # faster than to new ones.
        self._spare: memoryview | None = None
        self._lock = threading.Lock()

    def add(self, data: bytes | memoryview) -> ChunkRef:
        """Add a chunk to the open pack; a full pack is written."""
        with self._lock:
            pack = self._open
            if pack is None:
                pack = self._open = _Pack(
                    self._assets.generation.make_id(ChunkId), self._take_buffer()
                )
                self._unwritten[pack.id] = pack
            ref = pack.add(data)
            is_full = pack.size >= self._target_bytes
            if is_full:
                self._open = None
        if is_full:
            self._write(pack)
        return ref

    def get(self, ref: ChunkRef) -> bytes | None:
        """Return the bytes of a chunk whose pack is not written yet, else None."""
        with self._lock:
            pack = self._unwritten.get(ref.id)
            # A copy: the buffer is reused.
            return None if pack is None else bytes(pack.buffer[ref.offset :][: ref.length])

    def finish(self) -> None:
        """Write all unwritten packs."""
        with self._lock:
            self._open = None
            packs = list(self._unwritten.values())
        self._assets.run_concurrently(self._write, packs)
        self._spare = None

    def discard(self) -> None:
        """Drop unwritten packs."""
        with self._lock:
            self._open = self._spare = None
            self._unwritten.clear()

    def _write(self, pack: _Pack) -> None:
        with pack.lock:  # the thread that filled it and a commit may both write it
            if pack.id not in self._unwritten:
                return
            self._assets.write_chunk(pack.id, pack.buffer[: pack.size])
            with self._lock:
                self._unwritten.pop(pack.id, None)
                self._spare = pack.buffer

    def _take_buffer(self) -> memoryview:
        spare, self._spare = self._spare, None
        # The last chunk of a pack may exceed the target.
        return spare or memoryview(bytearray(self._target_bytes + self.max_chunk_bytes))
