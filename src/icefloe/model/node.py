"""Groups and arrays of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from icefloe.model.ids import AttributesId, ManifestId, NodeId
    from icefloe.model.path import Path


class NodeKind(IntEnum):
    """Group or array; the values are those of move operations in transaction logs."""

    GROUP = 0
    ARRAY = 1


class ChunkIndexRange(NamedTuple):
    """Chunk coordinates ``[start, stop)`` along one dimension."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ManifestExtents:
    """The bounding box of the chunks of one array in a manifest.

    If ``ranges`` is empty, it contains all chunks.
    """

    ranges: tuple[ChunkIndexRange, ...]

    def contains(self, indices: tuple[int, ...]) -> bool:
        """Whether a chunk is in the box."""
        return all(
            extent.start <= coord < extent.stop
            for extent, coord in zip(self.ranges, indices, strict=bool(self.ranges))
        )

    def overlaps(self, other: ManifestExtents) -> bool:
        """Whether the boxes intersect."""
        pairs = zip(self.ranges, other.ranges, strict=bool(self.ranges and other.ranges))
        return all(a.start < b.stop and b.start < a.stop for a, b in pairs)


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A reference from an array to one of its manifests."""

    id: ManifestId
    extents: ManifestExtents


@dataclass(frozen=True, slots=True)
class DimensionShape:
    """The length and number of chunks of one dimension.

    Only spec version 1 records ``chunk_length``; in spec version 2, chunks may differ in length.
    """

    array_length: int
    num_chunks: int
    chunk_length: int | None = None

    @classmethod
    def regular(cls, array_length: int, chunk_length: int) -> DimensionShape:
        """Make a dimension with chunks of equal length."""
        num_chunks = -(-array_length // chunk_length) if chunk_length else 0
        return cls(array_length, num_chunks, chunk_length)


@dataclass(frozen=True, slots=True)
class ArrayNodeData:
    """The shape, dimension names and manifests of an array."""

    shape: tuple[DimensionShape, ...]
    dimension_names: tuple[str | None, ...] | None
    manifests: tuple[ManifestRef, ...]


@dataclass(frozen=True, slots=True)
class GroupNodeData:
    """Marks a group, which has no further data."""


NodeData: TypeAlias = ArrayNodeData | GroupNodeData


@dataclass(frozen=True, slots=True)
class AttributesRef:
    """The attributes of a node in an attributes file: the file and the row in it."""

    id: AttributesId
    row: int


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A group or array; ``user_data`` is its Zarr metadata, byte for byte.

    ``attributes_ref`` is the place of the attributes in ``user_data``, if they are in an attributes
    file.
    """

    id: NodeId
    path: Path
    user_data: bytes
    node_data: NodeData
    attributes_ref: AttributesRef | None = field(default=None, compare=False)

    @property
    def kind(self) -> NodeKind:
        """Group or array."""
        return NodeKind.ARRAY if isinstance(self.node_data, ArrayNodeData) else NodeKind.GROUP

    @property
    def manifests(self) -> tuple[ManifestRef, ...]:
        """The references of an array to its manifests; none for a group."""
        return self.node_data.manifests if isinstance(self.node_data, ArrayNodeData) else ()

    @property
    def is_array(self) -> bool:
        """Whether the node is an array."""
        return isinstance(self.node_data, ArrayNodeData)
