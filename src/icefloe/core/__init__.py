"""The core types of a repository, public and the same over all generations.

`Repository.fetch_snapshot` returns a `SnapshotView`, which gives read-only access to them.
`docs/core-types.md` describes each type.
"""

from icefloe.core.chunk_counts import ChunkCounts as ChunkCounts
from icefloe.core.chunk_table import build_chunk_schema as build_chunk_schema
from icefloe.core.snapshot_view import ChunkLocation as ChunkLocation
from icefloe.core.snapshot_view import SnapshotView as SnapshotView
from icefloe.model.byte_range import Bounded as Bounded
from icefloe.model.byte_range import ByteRange as ByteRange
from icefloe.model.byte_range import From as From
from icefloe.model.byte_range import Last as Last
from icefloe.model.byte_range import Until as Until
from icefloe.model.chunk_index_columns import ChunkIndexColumns as ChunkIndexColumns
from icefloe.model.chunk_payload import Checksum as Checksum
from icefloe.model.chunk_payload import ChunkIndices as ChunkIndices
from icefloe.model.chunk_payload import ChunkKind as ChunkKind
from icefloe.model.chunk_payload import ChunkPayload as ChunkPayload
from icefloe.model.chunk_payload import ChunkRef as ChunkRef
from icefloe.model.chunk_payload import ETag as ETag
from icefloe.model.chunk_payload import InlineChunk as InlineChunk
from icefloe.model.chunk_payload import LastModified as LastModified
from icefloe.model.chunk_payload import VirtualChunkRef as VirtualChunkRef
from icefloe.model.ids import AttributesId as AttributesId
from icefloe.model.ids import ChunkId as ChunkId
from icefloe.model.ids import ManifestId as ManifestId
from icefloe.model.ids import NodeId as NodeId
from icefloe.model.ids import ObjectId as ObjectId
from icefloe.model.ids import SnapshotId as SnapshotId
from icefloe.model.manifest import ArrayManifest as ArrayManifest
from icefloe.model.manifest import ChunkPayloads as ChunkPayloads
from icefloe.model.manifest import Manifest as Manifest
from icefloe.model.node import ArrayNodeData as ArrayNodeData
from icefloe.model.node import AttributesRef as AttributesRef
from icefloe.model.node import ChunkIndexRange as ChunkIndexRange
from icefloe.model.node import DimensionShape as DimensionShape
from icefloe.model.node import GroupNodeData as GroupNodeData
from icefloe.model.node import ManifestExtents as ManifestExtents
from icefloe.model.node import ManifestRef as ManifestRef
from icefloe.model.node import NodeData as NodeData
from icefloe.model.node import NodeKind as NodeKind
from icefloe.model.node import NodeSnapshot as NodeSnapshot
from icefloe.model.path import Path as Path
from icefloe.model.snapshot import ManifestFileInfo as ManifestFileInfo
from icefloe.model.snapshot import Snapshot as Snapshot
from icefloe.model.snapshot import SnapshotInfo as SnapshotInfo
from icefloe.model.strings import Strings as Strings
from icefloe.model.transaction_log import MoveOperation as MoveOperation
from icefloe.model.transaction_log import TransactionLog as TransactionLog

__all__ = [
    "ArrayManifest",
    "ArrayNodeData",
    "AttributesId",
    "AttributesRef",
    "Bounded",
    "ByteRange",
    "Checksum",
    "ChunkCounts",
    "ChunkId",
    "ChunkIndexColumns",
    "ChunkIndexRange",
    "ChunkIndices",
    "ChunkKind",
    "ChunkLocation",
    "ChunkPayload",
    "ChunkPayloads",
    "ChunkRef",
    "DimensionShape",
    "ETag",
    "From",
    "GroupNodeData",
    "InlineChunk",
    "Last",
    "LastModified",
    "Manifest",
    "ManifestExtents",
    "ManifestFileInfo",
    "ManifestId",
    "ManifestRef",
    "MoveOperation",
    "NodeData",
    "NodeId",
    "NodeKind",
    "NodeSnapshot",
    "ObjectId",
    "Path",
    "Snapshot",
    "SnapshotId",
    "SnapshotInfo",
    "SnapshotView",
    "Strings",
    "TransactionLog",
    "Until",
    "VirtualChunkRef",
    "build_chunk_schema",
]
