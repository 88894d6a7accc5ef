"""Slices of chunks to fetch, and the clipping of byte ranges."""

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
    """A part of a native or virtual chunk that must be fetched; start and length are in bytes."""

    payload: ChunkRef | VirtualChunkRef
    start: int
    length: int


def get_chunk_length(payload: ChunkPayload) -> int:
    """Return the length of a chunk in bytes."""
    return len(payload.data) if isinstance(payload, InlineChunk) else payload.length


def clip_byte_range(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Clip a byte range to data of ``size`` bytes; return start and stop. None means all bytes.

    A range beyond the end is clipped to an empty range at the end.
    """
    match byte_range:
        case None:
            return 0, size
        case Bounded(start, end):
            return min(start, size), min(end, size)
        case From(start):
            return min(start, size), size
        case Last(length):
            return max(0, size - length), size
        case Until(skipped):
            return 0, max(0, size - skipped)
