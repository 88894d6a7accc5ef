"""Groups and arrays as a snapshot records them (seed `000`, NodeSnapshot and ManifestRef)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.path import Path


class NodeKind(IntEnum):
    """Group or array; the numbers are those of a move operation on disk."""

    GROUP = 0
    ARRAY = 1


class ChunkIndexRange(NamedTuple):
    """Chunk coordinates ``[start, stop)`` along one dimension."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ManifestExtents:
    """The box of chunk indices that a manifest covers for one array.

    No ranges at all, as scalar arrays have, means everything.
    """

    ranges: tuple[ChunkIndexRange, ...]

    def contains(self, indices: tuple[int, ...]) -> bool:
        """Whether a chunk lies in the box."""
        return all(
            box.start <= coord < box.stop
            for box, coord in zip(self.ranges, indices, strict=bool(self.ranges))
        )

    def overlaps(self, other: ManifestExtents) -> bool:
        """Whether some chunk lies in both boxes."""
        pairs = zip(self.ranges, other.ranges, strict=bool(self.ranges and other.ranges))
        return all(mine.start < theirs.stop and theirs.start < mine.stop for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A pointer from an array to one of the manifests that hold its chunk references."""

    id: ManifestId
    extents: ManifestExtents


@dataclass(frozen=True, slots=True)
class DimensionShape:
    """The length of an array along one dimension, and how many chunks cover it.

    ``chunk_length`` is what files of version 1 record, and None where a file of version 2 was
    read, which records the number of chunks alone: chunks need not be equal there.
    """

    array_length: int
    num_chunks: int
    chunk_length: int | None = None

    @classmethod
    def regular(cls, array_length: int, chunk_length: int) -> DimensionShape:
        """Describe a dimension that is cut into chunks of one length."""
        num_chunks = -(-array_length // chunk_length) if chunk_length else 0
        return cls(array_length, num_chunks, chunk_length)


@dataclass(frozen=True, slots=True)
class ArrayNodeData:
    """What a snapshot knows of an array besides its Zarr metadata.

    A dimension's name is None where it has none.
    """

    shape: tuple[DimensionShape, ...]
    dimension_names: tuple[str | None, ...] | None
    manifests: tuple[ManifestRef, ...]


@dataclass(frozen=True, slots=True)
class GroupNodeData:
    """Marks a group."""


NodeData: TypeAlias = ArrayNodeData | GroupNodeData


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A group or an array at one moment; ``user_data`` is its Zarr metadata, byte for byte."""

    id: NodeId
    path: Path
    user_data: bytes
    node_data: NodeData

    @property
    def kind(self) -> NodeKind:
        """Whether it is a group or an array."""
        return NodeKind.ARRAY if isinstance(self.node_data, ArrayNodeData) else NodeKind.GROUP

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return isinstance(self.node_data, ArrayNodeData)
