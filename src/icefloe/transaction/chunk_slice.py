"""Byte ranges within a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.model.byte_range import Bounded, From, Last, Until
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef

if TYPE_CHECKING:
    from icefloe.model.byte_range import ByteRange
    from icefloe.model.chunk_payload import ChunkPayload


@dataclass(frozen=True, slots=True)
class ChunkSlice:
    """A byte range of a native or virtual chunk, which must be fetched."""

    payload: ChunkRef | VirtualChunkRef
    start: int
    length: int


def get_chunk_length(payload: ChunkPayload) -> int:
    """Return the length of a chunk in bytes."""
    return len(payload.data) if isinstance(payload, InlineChunk) else payload.length


def clip_byte_range(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Clip a byte range to a chunk of ``size`` bytes; return start and stop. None is the chunk."""
    match byte_range:
        case None:
            return 0, size
        case Bounded(start, end):
            stop = min(end, size)
        case From(start):
            stop = size
        case Last(length):
            return max(0, size - length), size
        case Until(skipped):
            return 0, max(0, size - skipped)
    start = min(start, size)
    return start, max(start, stop)
