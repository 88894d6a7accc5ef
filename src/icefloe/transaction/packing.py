"""Small chunks together in one object: fewer requests, fewer files.

A chunk that goes into a pack has its reference at once, and is readable at once, from memory; its
bytes are written when the pack is full, and at the latest before anything that refers to it is.
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
    """Chunks that wait for their object to be written."""

    __slots__ = ("buffer", "id", "lock", "size")

    def __init__(self, buffer: memoryview) -> None:
        self.id = ChunkId.random()
        self.buffer = buffer
        self.size = 0
        self.lock = threading.Lock()

    def add(self, data: bytes | memoryview) -> ChunkRef:
        start, self.size = self.size, self.size + len(data)
        self.buffer[start : self.size] = data
        return ChunkRef(self.id, start, len(data))


class Packer:
    """Collects the small chunks of one session."""

    def __init__(self, assets: Assets, config: PackingConfig) -> None:
        self.max_chunk_bytes = config.effective_max_chunk_bytes
        self._target_bytes = config.effective_target_object_bytes
        self._assets = assets
        self._open: _Pack | None = None
        # A pack stays here until it is known to be written: a failed put is tried again.
        self._unwritten: dict[ChunkId, _Pack] = {}
        # Of the pack that was written last, for the next: memory that was touched before takes a
        # chunk several times faster than memory that the system has yet to find.
        self._spare: memoryview | None = None
        self._lock = threading.Lock()

    def add(self, data: bytes | memoryview) -> ChunkRef:
        """Put a chunk into a pack; writes a pack that is full."""
        with self._lock:
            pack = self._open
            if pack is None:
                pack = self._open = _Pack(self._buffer())
                self._unwritten[pack.id] = pack
            ref = pack.add(data)
            is_full = pack.size >= self._target_bytes
            if is_full:
                self._open = None
        if is_full:
            self._write(pack)
        return ref

    def get(self, ref: ChunkRef) -> bytes | None:
        """Return a chunk whose pack is not written yet."""
        with self._lock:
            pack = self._unwritten.get(ref.id)
            # A copy: the buffer will hold other chunks.
            return None if pack is None else bytes(pack.buffer[ref.offset :][: ref.length])

    def finish(self) -> None:
        """Write what waits: everything that was added is in the storage after this."""
        with self._lock:
            self._open = None
            waiting = list(self._unwritten.values())
        self._assets.run_concurrently(self._write, waiting)
        self._spare = None

    def discard(self) -> None:
        """Forget what waits; nothing refers to it."""
        with self._lock:
            self._open = self._spare = None
            self._unwritten.clear()

    def _write(self, pack: _Pack) -> None:
        with pack.lock:  # whoever filled it, and a commit meanwhile, may both want it written
            if pack.id not in self._unwritten:
                return
            self._assets.write_chunk(pack.id, pack.buffer[: pack.size])
            with self._lock:
                self._unwritten.pop(pack.id, None)
                self._spare = pack.buffer

    def _buffer(self) -> memoryview:
        spare, self._spare = self._spare, None
        # The last chunk of a pack may reach past the target.
        return spare or memoryview(bytearray(self._target_bytes + self.max_chunk_bytes))
