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

    __slots__ = ("id", "pieces", "size")

    def __init__(self) -> None:
        self.id = ChunkId.random()
        self.pieces: dict[int, bytes] = {}
        self.size = 0

    def add(self, data: bytes) -> ChunkRef:
        ref = ChunkRef(self.id, self.size, len(data))
        self.pieces[self.size] = data
        self.size += len(data)
        return ref


class Packer:
    """Collects the small chunks of one session."""

    def __init__(self, assets: Assets, config: PackingConfig) -> None:
        self.max_chunk_bytes = config.effective_max_chunk_bytes
        self._target_bytes = config.effective_target_object_bytes
        self._assets = assets
        self._open = _Pack()
        # A pack stays here until it is known to be written: a failed put is tried again.
        self._unwritten: dict[ChunkId, _Pack] = {}
        self._lock = threading.Lock()

    def add(self, data: bytes) -> ChunkRef:
        """Put a chunk into a pack; writes a pack that is full."""
        with self._lock:
            pack = self._open
            self._unwritten[pack.id] = pack
            ref = pack.add(data)
            is_full = pack.size >= self._target_bytes
            if is_full:
                self._open = _Pack()
        if is_full:
            self._write(pack)
        return ref

    def get(self, ref: ChunkRef) -> bytes | None:
        """Return a chunk whose pack is not written yet."""
        pack = self._unwritten.get(ref.id)
        return None if pack is None else pack.pieces[ref.offset]

    def finish(self) -> None:
        """Write what waits: everything that was added is in the storage after this."""
        with self._lock:
            self._open = _Pack()
            waiting = list(self._unwritten.values())
        self._assets.all_at_once(self._write, waiting)

    def discard(self) -> None:
        """Forget what waits; nothing refers to it."""
        with self._lock:
            self._open = _Pack()
            self._unwritten.clear()

    def _write(self, pack: _Pack) -> None:
        self._assets.write_chunk(pack.id, b"".join(pack.pieces.values()))
        self._unwritten.pop(pack.id, None)
