"""Single chunk references; manifests store them as columns (`icefloe.model.manifest`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.url_secrets import masked_repr

if TYPE_CHECKING:
    from icefloe.model.ids import ChunkId

MAX_U32 = 2**32 - 1
MAX_U64 = 2**64 - 1


class ChunkKind(IntEnum):
    """The kind of a chunk reference, numbered as in `icefloe.types.ChunkType`."""

    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3


class ChunkIndices(tuple[int, ...]):
    """The coordinates of a chunk in the grid of its array, as unsigned 32-bit integers.

    A tuple: immutable, hashable, ordered as manifests order chunks.
    """

    __slots__ = ()

    def __new__(cls, *coords: int) -> Self:
        """Make the indices of a chunk; the chunk of a scalar array has no coordinates."""
        return super().__new__(cls, map(_require_coord, coords))

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"ChunkIndices({', '.join(map(str, self))})"


def _require_coord(coord: object) -> int:
    # `index` accepts the integers of numpy, and booleans.
    if not isinstance(coord, bool) and hasattr(coord, "__index__"):
        try:
            number = index(coord)
        except TypeError:  # a numpy boolean or array
            number = -1
        if 0 <= number <= MAX_U32:
            return number
    raise InvalidInputError(
        f"chunk indices must be integers between 0 and {MAX_U32}, got {coord!r:.80}",
        kind=ErrorKind.INVALID_CHUNK_INDEX,
    )


@dataclass(frozen=True, slots=True)
class ETag:
    """A checksum: the entity tag that the file of a virtual chunk must have on reads."""

    value: str


@dataclass(frozen=True, slots=True)
class LastModified:
    """A checksum: the time, in seconds since 1970, after which the file must not have changed."""

    seconds: int

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MAX_U32:
            raise InvalidInputError(
                f"a last-modified checksum must be between 1 and {MAX_U32} seconds since 1970, "
                f"got {self.seconds}",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )


Checksum: TypeAlias = ETag | LastModified


class ChunkRef(NamedTuple):
    """A native chunk: a byte range of ``chunks/{id}``. A tuple for speed: each read creates one."""

    id: ChunkId
    offset: int
    length: int


@masked_repr
@dataclass(frozen=True, slots=True)
class VirtualChunkRef:
    """A virtual chunk: a byte range of a file outside the repository."""

    location: str
    offset: int
    length: int
    checksum: Checksum | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.offset <= MAX_U64 and 0 <= self.length <= MAX_U64):
            raise InvalidInputError(
                f"offset {self.offset} and length {self.length} must be unsigned 64-bit integers",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )


@dataclass(frozen=True, slots=True)
class InlineChunk:
    """A small chunk, stored in the manifest."""

    data: bytes


ChunkPayload: TypeAlias = ChunkRef | VirtualChunkRef | InlineChunk
