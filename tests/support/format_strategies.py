"""Hypothesis strategies for the values that metadata files hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from icefloe.format.timestamps import from_microseconds
from icefloe.model import repo_info as info
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import (
    ChunkPayload,
    ChunkRef,
    ETag,
    InlineChunk,
    LastModified,
    VirtualChunkRef,
)
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeKind,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
from icefloe.model.transaction_log import MoveOperation, TransactionLog

U8, U16, U32, U64 = (2**bits - 1 for bits in (8, 16, 32, 64))


def up_to(limit: int) -> st.SearchStrategy[int]:
    """Numbers from 0 to the limit, small ones and the edges more often."""
    return st.integers(0, min(limit, 5)) | st.integers(0, limit) | st.just(limit)


def raw_ids(size: int) -> st.SearchStrategy[bytes]:
    """Ids of which many are alike but for their first or last bytes."""
    return st.binary(min_size=size, max_size=size) | st.builds(
        lambda first, last: bytes((first,)) + bytes(size - 2) + bytes((last,)),
        up_to(U8),
        up_to(U8),
    )


NODE_IDS = raw_ids(8).map(NodeId)
NUMBERED_NODE_IDS = up_to(U32).map(NodeId.from_number)
SNAPSHOT_IDS = raw_ids(12).map(SnapshotId)
MANIFEST_IDS = raw_ids(12).map(ManifestId)
CHUNK_IDS = raw_ids(12).map(ChunkId)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = up_to(253_402_300_799_999_999).map(lambda value: from_microseconds(value, "a strategy"))
SEGMENTS = st.text(
    st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=4
).filter(lambda segment: segment not in (".", ".."))
PATHS = st.lists(SEGMENTS, max_size=3).map(lambda segments: Path("/" + "/".join(segments)))

# Few of them, so that chunks share them.
LOCATIONS = st.sampled_from(["", "s3://bucket/é/🧊.nc", "s3://b/" + "x" * 300]) | TEXTS
ETAGS = st.sampled_from(["", '"abc"', "ü"]) | TEXTS
INLINE = st.sampled_from([b"", b"\x00" * 8, b"same", bytes(range(256)) * 3]) | st.binary(
    max_size=12
)
CHECKSUMS = st.none() | ETAGS.map(ETag) | st.integers(1, U32).map(LastModified)
PAYLOADS = st.one_of(
    st.builds(ChunkRef, CHUNK_IDS, up_to(U64), up_to(U64)),
    st.builds(VirtualChunkRef, LOCATIONS, up_to(U64), up_to(U64), CHECKSUMS),
    st.builds(InlineChunk, INLINE),
)

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), U64)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
METADATA = st.dictionaries(TEXTS, JSON_VALUES, max_size=4)


@st.composite
def index_matrices(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Distinct chunk indices of one array, in any order; scalar arrays have one or none."""
    ndim = draw(st.integers(0, 4))
    if ndim == 0:
        return np.zeros((draw(st.integers(0, 1)), 0), np.uint32)
    rows = draw(st.lists(st.tuples(*[up_to(U32)] * ndim), unique=True, min_size=1, max_size=8))
    return np.array(rows, np.uint32).reshape(len(rows), ndim)


@st.composite
def manifests(
    draw: st.DrawFn,
    *,
    manifest_ids: st.SearchStrategy[ManifestId] = MANIFEST_IDS,
    node_ids: st.SearchStrategy[NodeId] = NODE_IDS,
    payloads: st.SearchStrategy[ChunkPayload] = PAYLOADS,
    min_chunks: int = 0,
) -> Manifest:
    """Manifests of several arrays of different rank, by default with every kind of payload."""
    arrays = {}
    for node_id in draw(st.lists(node_ids, unique=True, max_size=4)):
        coords = draw(index_matrices().filter(lambda matrix: len(matrix) >= min_chunks))
        items = draw(st.lists(payloads, min_size=len(coords), max_size=len(coords)))
        arrays[node_id] = ArrayManifest(coords, ChunkPayloads.of(items))
    return Manifest.of(draw(manifest_ids), arrays)


@st.composite
def chunk_index_columns(draw: st.DrawFn) -> ChunkIndexColumns:
    return ChunkIndexColumns.of(draw(st.dictionaries(NODE_IDS, index_matrices(), max_size=4)))


@st.composite
def array_node_data(draw: st.DrawFn, spec_version: int) -> ArrayNodeData:
    dimension = (
        st.builds(DimensionShape.regular, up_to(U64), up_to(U64))
        if spec_version == 1
        else st.builds(DimensionShape, up_to(U64), up_to(U32))
    )
    shape = tuple(draw(st.lists(dimension, max_size=4)))
    ndim = len(shape)
    edges = st.tuples(up_to(U32), up_to(U32)).map(lambda pair: ChunkIndexRange(*sorted(pair)))
    everything: st.SearchStrategy[list[ChunkIndexRange]] = st.just([])
    ranges = st.lists(edges, min_size=ndim, max_size=ndim) | everything
    extents = ranges.map(lambda items: ManifestExtents(tuple(items)))
    name = st.none() | TEXTS.filter(bool)
    names = st.none() | st.lists(name, min_size=ndim, max_size=ndim).map(tuple)
    refs = st.lists(st.builds(ManifestRef, MANIFEST_IDS, extents), max_size=3)
    return ArrayNodeData(shape, draw(names), tuple(draw(refs)))


@st.composite
def snapshots(draw: st.DrawFn, spec_version: int) -> Snapshot:
    """Snapshots as their version can record them."""
    paths = draw(st.lists(PATHS, unique=True, max_size=5))
    ids = draw(st.lists(NODE_IDS, unique=True, min_size=len(paths), max_size=len(paths)))
    data = st.just(GroupNodeData()) | array_node_data(spec_version)
    user_data = st.sampled_from([b"", b'{"zarr_format":3}']) | st.binary(max_size=2000)
    nodes = [
        NodeSnapshot(node_id, path, draw(user_data), draw(data))
        for node_id, path in zip(ids, sorted(paths), strict=True)
    ]
    files = st.lists(
        st.builds(ManifestFileInfo, MANIFEST_IDS, up_to(U64), up_to(U32)),
        unique_by=lambda file: file.id,
        max_size=4,
    )
    return Snapshot(
        id=draw(SNAPSHOT_IDS),
        parent_id=draw(st.none() | SNAPSHOT_IDS) if spec_version == 1 else None,
        flushed_at=draw(TIMES),
        message=draw(TEXTS),
        metadata=draw(METADATA),
        nodes=tuple(nodes),
        manifest_files=tuple(sorted(draw(files), key=lambda file: file.id)),
    )


@st.composite
def transaction_logs(draw: st.DrawFn) -> TransactionLog:
    moves = st.lists(
        st.builds(MoveOperation, PATHS, PATHS, NODE_IDS, st.sampled_from(NodeKind)),
        unique_by=lambda move: move.to_path,
        max_size=4,
    )
    nodes = st.frozensets(NODE_IDS, max_size=4)
    return TransactionLog(
        id=draw(SNAPSHOT_IDS),
        new_groups=draw(nodes),
        new_arrays=draw(nodes),
        deleted_groups=draw(nodes),
        deleted_arrays=draw(nodes),
        updated_groups=draw(nodes),
        updated_arrays=draw(nodes),
        updated_chunks=draw(chunk_index_columns()),
        moved_nodes=tuple(sorted(draw(moves), key=lambda move: move.to_path.segments)),
    )


STATUSES = st.builds(
    info.RepoStatus, st.sampled_from(info.RepoAvailability), TIMES, st.none() | TEXTS
)
UPDATE_TYPES = st.one_of(
    st.builds(info.RepoInitialized),
    st.builds(info.RepoMigrated, up_to(U8), up_to(U8)),
    st.builds(info.ConfigChanged),
    st.builds(info.MetadataChanged),
    st.builds(info.TagCreated, TEXTS),
    st.builds(info.TagDeleted, TEXTS, SNAPSHOT_IDS),
    st.builds(info.BranchCreated, TEXTS),
    st.builds(info.BranchDeleted, TEXTS, SNAPSHOT_IDS),
    st.builds(info.BranchReset, TEXTS, SNAPSHOT_IDS),
    st.builds(info.NewCommit, TEXTS, SNAPSHOT_IDS),
    st.builds(info.CommitAmended, TEXTS, SNAPSHOT_IDS, SNAPSHOT_IDS),
    st.builds(info.NewDetachedSnapshot, SNAPSHOT_IDS),
    st.builds(info.GCRan),
    st.builds(info.ExpirationRan),
    st.builds(info.FeatureFlagChanged, up_to(U16), st.none() | st.booleans()),
    st.builds(info.RepoStatusChanged, STATUSES),
)
CONFIGS = st.none() | st.builds(
    RepositoryConfig,
    inline_chunk_threshold_bytes=st.integers(0, U16),
    get_partial_values_concurrency=st.integers(1, U16),
)


@st.composite
def repo_infos(draw: st.DrawFn) -> info.RepoInfo:
    """Repository infos with a history that may fork, refs into it, and any ops log."""
    ids = draw(st.lists(SNAPSHOT_IDS, unique=True, min_size=1, max_size=5))
    # A parent comes earlier in the order drawn, whatever the order of the ids.
    snapshots = [
        SnapshotInfo(
            snapshot_id,
            draw(st.none() | st.sampled_from(ids[:place])) if place else None,
            draw(TIMES),
            draw(TEXTS),
            draw(METADATA),
            tuple(draw(st.lists(SNAPSHOT_IDS, max_size=2))),
        )
        for place, snapshot_id in enumerate(ids)
    ]
    refs = st.dictionaries(TEXTS, st.sampled_from(ids), max_size=3)
    updates = st.lists(
        st.builds(info.OpsLogEntry, UPDATE_TYPES, TIMES, st.none() | TEXTS), max_size=6
    )
    enabled = draw(st.frozensets(up_to(U16), max_size=3))
    return info.RepoInfo(
        spec_version=2,
        branches={**draw(refs), "main": draw(st.sampled_from(ids))},
        tags=draw(refs),
        deleted_tags=draw(st.frozensets(TEXTS, max_size=3)),
        snapshots=tuple(sorted(snapshots, key=lambda snapshot: snapshot.id)),
        status=draw(STATUSES),
        latest_updates=tuple(draw(updates)),
        metadata=draw(METADATA),
        repo_before_updates=draw(st.none() | TEXTS),
        config=draw(CONFIGS),
        enabled_feature_flags=enabled,
        disabled_feature_flags=draw(st.frozensets(up_to(U16), max_size=3)) - enabled,
    )
