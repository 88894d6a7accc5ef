"""Chunk references, one value for each chunk.

Manifests hold them as columns (`icefloe.model.manifest`) and return these values on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from icefloe.model.ids import ChunkId

MAX_U32 = 2**32 - 1
MAX_U64 = 2**64 - 1


class ChunkKind(IntEnum):
    """The kind of a chunk reference; numbers as in the public API."""

    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3


class ChunkIndices(tuple[int, ...]):
    """The coordinates of a chunk in the grid of its array, as unsigned 32-bit numbers."""

    __slots__ = ()

    def __new__(cls, *coords: int) -> Self:
        """Make the indices of a chunk; that of a scalar array has none."""
        if any(not 0 <= coord <= MAX_U32 for coord in coords):
            raise InvalidInputError(
                f"chunk indices {coords} must be between 0 and {MAX_U32}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        return super().__new__(cls, coords)

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)


@dataclass(frozen=True, slots=True)
class ETag:
    """A checksum: the file of a virtual chunk must have this entity tag when read."""

    value: str


@dataclass(frozen=True, slots=True)
class LastModified:
    """A checksum: the file must not have changed after this time, in seconds since 1970."""

    seconds: int

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MAX_U32:
            raise InvalidInputError(
                f"a last-modified checksum must be between 1 and {MAX_U32} seconds since 1970, "
                f"not {self.seconds}",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )


Checksum: TypeAlias = ETag | LastModified


class ChunkRef(NamedTuple):
    """A native chunk: a range of ``chunks/{id}``. A tuple, for speed: each access makes one."""

    id: ChunkId
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class VirtualChunkRef:
    """A virtual chunk: a range of a file outside the repository."""

    location: str
    offset: int
    length: int
    checksum: Checksum | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.offset <= MAX_U64 and 0 <= self.length <= MAX_U64):
            raise InvalidInputError(
                f"offset {self.offset} and length {self.length} must be unsigned 64-bit numbers",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )


@dataclass(frozen=True, slots=True)
class InlineChunk:
    """A small chunk, stored in the manifest."""

    data: bytes


ChunkPayload: TypeAlias = ChunkRef | VirtualChunkRef | InlineChunk
