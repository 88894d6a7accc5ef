"""What no file can hold is refused when it is written, with an error of icefloe's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.errors import FormatError, IcefloeError, InvalidInputError
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import InlineChunk
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
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
from icefloe.model.repo_info import (
    FeatureFlagChanged,
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoStatus,
)
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
from icefloe.model.transaction_log import MoveOperation, TransactionLog
from support.format_kinds import MANIFEST, REPO_INFO, SNAPSHOT, TRANSACTION_LOG

if TYPE_CHECKING:
    from collections.abc import Mapping

TIME = datetime(2025, 1, 1, tzinfo=UTC)
NODE, OTHER_NODE = NodeId(b"n" * 8), NodeId(b"o" * 8)
MANIFEST_ID, FIRST, SECOND = ManifestId(bytes(12)), SnapshotId(b"1" * 12), SnapshotId(b"2" * 12)
SNAPSHOT_VALUE = Snapshot(FIRST, None, TIME, "a message", {}, (), ())
NONE: frozenset[NodeId] = frozenset()
LOG_VALUE = TransactionLog(FIRST, NONE, NONE, NONE, NONE, NONE, NONE, ChunkIndexColumns.of({}))
REPO_VALUE = RepoInfo(
    spec_version=2,
    branches={"main": FIRST},
    tags={},
    deleted_tags=frozenset(),
    snapshots=(SnapshotInfo(FIRST, None, TIME, "first"),),
    status=RepoStatus(RepoAvailability.online, TIME),
    latest_updates=(),
)


def group(node_id: NodeId, path: str) -> NodeSnapshot:
    return NodeSnapshot(node_id, Path(path), b"{}", GroupNodeData())


def array(shape: DimensionShape, *ranges: tuple[int, int]) -> tuple[NodeSnapshot]:
    extents = ManifestExtents(tuple(ChunkIndexRange(*pair) for pair in ranges))
    data = ArrayNodeData((shape,), None, (ManifestRef(MANIFEST_ID, extents),))
    return (NodeSnapshot(NODE, Path("/a"), b"{}", data),)


ONE = DimensionShape(1, 1, 1)


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize(
    "changes, error, reason",
    [
        ({"flushed_at": datetime(1969, 12, 31, tzinfo=UTC)}, InvalidInputError, "before 1970"),
        ({"flushed_at": datetime(2025, 1, 1)}, InvalidInputError, "time zone"),  # noqa: DTZ001
        ({"message": "\ud800"}, InvalidInputError, "lone surrogate"),
        ({"metadata": {"\ud800": 1}}, InvalidInputError, "lone surrogate"),
        ({"metadata": {"a": "\ud800"}}, InvalidInputError, "surrogate"),
        ({"metadata": {"a": 2**64}}, InvalidInputError, ""),
        ({"metadata": {"a": {1, 2}}}, InvalidInputError, "set"),
        ({"metadata": {"a": b"bytes"}}, InvalidInputError, "bytes"),
        ({"metadata": {"a": {1: 2}}}, InvalidInputError, "key"),
        ({"nodes": (group(NODE, "/a"), group(OTHER_NODE, "/a"))}, FormatError, "duplicate paths"),
        ({"nodes": (group(NODE, "/a"), group(NODE, "/b"))}, FormatError, "duplicate node ids"),
        ({"nodes": array(DimensionShape(2**64, 1, 1))}, InvalidInputError, "array_length"),
        ({"nodes": array(DimensionShape(-1, 1, 1))}, InvalidInputError, "array_length"),
        ({"nodes": array(ONE, (0, 2**32))}, InvalidInputError, "chunk index"),
        (
            {"manifest_files": (ManifestFileInfo(MANIFEST_ID, 1, 2**32),)},
            InvalidInputError,
            "num_chunk_refs",
        ),
        (
            {"manifest_files": (ManifestFileInfo(MANIFEST_ID, 2**64, 1),)},
            InvalidInputError,
            "size_bytes",
        ),
        (
            {"manifest_files": (ManifestFileInfo(MANIFEST_ID, 1, 1),) * 2},
            FormatError,
            "duplicate manifest files",
        ),
    ],
)
def test_snapshots(
    changes: Mapping[str, Any], error: type[IcefloeError], reason: str, spec_version: int
) -> None:
    """Times, texts, numbers and lists that no snapshot file can hold."""
    value = replace(SNAPSHOT_VALUE, **changes)
    with pytest.raises(error, match=reason or None):
        SNAPSHOT.write(value, spec_version)


def test_a_chunk_grid_too_large_for_version_2() -> None:
    """Version 2 counts chunks in 32 bits; version 1 does not count them."""
    value = replace(SNAPSHOT_VALUE, nodes=array(DimensionShape.regular(2**40, 1)))
    SNAPSHOT.write(value, 1)
    with pytest.raises(InvalidInputError, match="num_chunks"):
        SNAPSHOT.write(value, 2)


@pytest.mark.parametrize(
    "changes, error, reason",
    [
        ({"spec_version": 1}, FormatError, "expected spec version 2, got 1"),
        ({"branches": {}}, FormatError, "lacks branch main"),
        ({"branches": {"main": SECOND}}, FormatError, f"lacks snapshot {SECOND}"),
        ({"tags": {"t": SECOND}}, FormatError, f"lacks snapshot {SECOND}"),
        ({"snapshots": (*REPO_VALUE.snapshots,) * 2}, FormatError, "duplicate snapshot ids"),
        (
            {"enabled_feature_flags": frozenset({2**16})},
            InvalidInputError,
            "cannot be stored .*65535",
        ),
        (
            {"latest_updates": (OpsLogEntry(FeatureFlagChanged(2**16, new_value=True), TIME),)},
            InvalidInputError,
            "cannot be stored .*65535",
        ),
        ({"deleted_tags": frozenset({"\ud800"})}, InvalidInputError, "surrogates not allowed"),
    ],
)
def test_repo_infos(changes: Mapping[str, Any], error: type[IcefloeError], reason: str) -> None:
    """An unreadable repository info is not written."""
    with pytest.raises(error, match=reason):
        REPO_INFO.write(replace(REPO_VALUE, **changes), 2)


def test_two_moves_to_one_path() -> None:
    """One of two nodes at one path would be lost."""
    moves = tuple(
        MoveOperation(Path(source), Path("/to"), NODE, NodeKind.GROUP) for source in ("/a", "/b")
    )
    with pytest.raises(FormatError, match="moves several nodes to one path"):
        TRANSACTION_LOG.write(replace(LOG_VALUE, moved_nodes=moves), 2)


def test_more_dimensions_than_a_reader_takes() -> None:
    """The limit of the reader is the limit of the writer."""
    wide = np.zeros((1, 256), np.uint32)
    payloads = ChunkPayloads.of([InlineChunk(b"")])
    manifest = Manifest.of(MANIFEST_ID, {NODE: ArrayManifest(wide, payloads)})
    log = replace(LOG_VALUE, updated_chunks=ChunkIndexColumns.of({NODE: wide}))
    for kind, value in ((MANIFEST, manifest), (TRANSACTION_LOG, log)):
        with pytest.raises(FormatError, match="256 dimensions exceed the limit of 255"):
            kind.write(value, 2)
    fits = ChunkIndexColumns.of({NODE: wide[:, :255]})
    log = replace(log, updated_chunks=fits)
    assert TRANSACTION_LOG.decode(TRANSACTION_LOG.write(log, 2), "a file") == log


def test_columns_of_different_length() -> None:
    """Indices and payloads go together row by row."""
    columns = ChunkIndexColumns.of({NODE: np.zeros((1, 1), np.uint32)})
    with pytest.raises(FormatError, match="1 chunk indices and 0 payloads"):
        MANIFEST.write(Manifest(MANIFEST_ID, columns, ChunkPayloads.of([])), 2)
