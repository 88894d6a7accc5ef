"""Groups and arrays of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.path import Path


class NodeKind(IntEnum):
    """Group or array, numbered as in move operations on disk."""

    GROUP = 0
    ARRAY = 1


class ChunkIndexRange(NamedTuple):
    """Chunk coordinates ``[start, stop)`` along one dimension."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ManifestExtents:
    """The bounding box of the chunks of one array in a manifest; no ranges mean all chunks."""

    ranges: tuple[ChunkIndexRange, ...]

    def contains(self, indices: tuple[int, ...]) -> bool:
        """Whether a chunk is in the box."""
        return all(
            box.start <= coord < box.stop
            for box, coord in zip(self.ranges, indices, strict=bool(self.ranges))
        )

    def overlaps(self, other: ManifestExtents) -> bool:
        """Whether the boxes intersect."""
        pairs = zip(self.ranges, other.ranges, strict=bool(self.ranges and other.ranges))
        return all(mine.start < theirs.stop and theirs.start < mine.stop for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A reference from an array to a manifest with its chunk references."""

    id: ManifestId
    extents: ManifestExtents


@dataclass(frozen=True, slots=True)
class DimensionShape:
    """The length and number of chunks of one dimension.

    ``chunk_length`` is recorded in version 1 only, since chunks of version 2 may differ in length.
    """

    array_length: int
    num_chunks: int
    chunk_length: int | None = None

    @classmethod
    def regular(cls, array_length: int, chunk_length: int) -> DimensionShape:
        """Make a dimension with chunks of one length."""
        num_chunks = -(-array_length // chunk_length) if chunk_length else 0
        return cls(array_length, num_chunks, chunk_length)


@dataclass(frozen=True, slots=True)
class ArrayNodeData:
    """The data of an array in a snapshot, besides its Zarr metadata."""

    shape: tuple[DimensionShape, ...]
    dimension_names: tuple[str | None, ...] | None
    manifests: tuple[ManifestRef, ...]


@dataclass(frozen=True, slots=True)
class GroupNodeData:
    """Marker of a group."""


NodeData: TypeAlias = ArrayNodeData | GroupNodeData


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A group or array; ``user_data`` is its Zarr metadata, byte for byte."""

    id: NodeId
    path: Path
    user_data: bytes
    node_data: NodeData

    @property
    def kind(self) -> NodeKind:
        """The kind of the node."""
        return NodeKind.ARRAY if isinstance(self.node_data, ArrayNodeData) else NodeKind.GROUP

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return isinstance(self.node_data, ArrayNodeData)
