"""Codec of snapshot files (Icechunk spec, "Snapshot Files")."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format import direct_snapshot, schema
from icefloe.format.direct_snapshot import ARRAY, GROUP, get_chunk_length
from icefloe.format.direct_writer import UNFIT
from icefloe.format.encoded_nodes import EncodedNodes
from icefloe.format.envelope import DEFAULT_LEVEL, FileType, unpack
from icefloe.format.flatbuffer_reader import FlatBuffer
from icefloe.format.flatbuffer_writer import Layout, assign
from icefloe.format.ids import to_id_rows, to_ids
from icefloe.format.metadata import read_metadata, write_metadata
from icefloe.format.node_columns import find_arrays
from icefloe.format.size_choice import is_small, is_small_file
from icefloe.format.snapshot_checks import require_distinct
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.model.id_columns import find_unique_rows
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.lazy_nodes import ManifestFiles
from icefloe.model.node import (
    ArrayNodeData,
    NodeSnapshot,
)
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotFiles, SnapshotInfo
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.format.flatbuffer_writer import Records

_DIMENSION_SHAPE = "<u8,<u8"
_INDEX_RANGE = "<u4,<u4"
_MANIFEST_FILE_INFO = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": ["(12,)u1", "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)


def decode_snapshot(data: bytes | memoryview, file: str) -> Snapshot:
    """Decode and check a snapshot file of either spec version."""
    snapshot = open_snapshot(data, file)
    return replace(snapshot, nodes=snapshot.nodes[:], manifest_files=snapshot.manifest_files[:])


def open_snapshot(data: bytes | memoryview, file: str) -> Snapshot:
    """Open a snapshot file of either spec version; nodes of a large one are decoded on access."""
    header, body = unpack(data, FileType.SNAPSHOT, file)
    if is_small_file(body):
        return direct_snapshot.read_snapshot(body, file, header.spec_version)
    return _read_columns(body, file, header.spec_version)


def decode_snapshot_info(data: bytes | memoryview, file: str) -> SnapshotInfo:
    """Decode the history entry of a snapshot file; the rest of the file is not checked."""
    header, body = unpack(data, FileType.SNAPSHOT, file)
    return direct_snapshot.read_snapshot_info(body, file, header.spec_version)


def decode_snapshot_files(data: bytes | memoryview, file: str) -> SnapshotFiles:
    """Decode which files a snapshot refers to; the rest of the file is not checked.

    Readers use the references of arrays, so manifests that only those name are returned as well.
    """
    header, body = unpack(data, FileType.SNAPSHOT, file)
    if is_small_file(body):
        return direct_snapshot.read_snapshot_files(body, file, header.spec_version)
    root = FlatBuffer(body, file).get_root("Snapshot")
    table, node, array = schema.Snapshot, schema.NodeSnapshot, schema.ArrayNodeData
    infos = _read_manifest_files(root, is_v1=header.spec_version == 1)
    _, nodes = root.get_children(table.NODES, "NodeSnapshot")
    is_array = find_arrays(nodes)
    arrays = nodes.get_tables(node.NODE_DATA, "ArrayNodeData", np.flatnonzero(is_array))
    _, refs = arrays.get_children(array.MANIFESTS, "ManifestRef")
    ids = find_unique_rows(refs.read_structs(schema.ManifestRef.OBJECT_ID))
    others = set(to_ids(ids, ManifestId)) - {info.id for info in infos}
    return SnapshotFiles(
        SnapshotId(root.read_structs(table.ID).tobytes()),
        _read_parent(root, header.spec_version),
        (*infos, *(ManifestFileInfo(manifest_id, 0, 0) for manifest_id in others)),
    )


def _read_columns(body: bytes, file: str, spec_version: int) -> Snapshot:
    root = FlatBuffer(body, file).get_root("Snapshot")
    table = schema.Snapshot
    is_v1 = spec_version == 1
    return Snapshot(
        id=SnapshotId(root.read_structs(table.ID).tobytes()),
        parent_id=_read_parent(root, spec_version),
        flushed_at=from_microseconds(int(root.read_scalars(table.FLUSHED_AT)[0]), file),
        message=root.read_texts(table.MESSAGE)[0] or "",
        metadata=read_metadata(root, table.METADATA, spec_version, required=True)[0],
        nodes=EncodedNodes(body, file, is_v1=is_v1),
        manifest_files=_read_manifest_files(root, is_v1=is_v1),
    )


def _read_parent(root: Tables, spec_version: int) -> SnapshotId | None:
    # In spec version 2, the file `repo` records ancestry, and a parent here is ignored.
    if spec_version > 1 or not root.has(schema.Snapshot.PARENT_ID)[0]:
        return None
    return SnapshotId(root.read_structs(schema.Snapshot.PARENT_ID).tobytes())


def _read_manifest_files(root: Tables, *, is_v1: bool) -> ManifestFiles:
    table = schema.Snapshot
    if root.has(table.MANIFEST_FILES_V2)[0]:
        if is_v1:
            root.buffer.fail("has spec version 1 but a list of manifests of spec version 2")
        info = schema.ManifestFileInfoV2
        _, files = root.get_children(table.MANIFEST_FILES_V2, "ManifestFileInfoV2")
        ids = files.read_structs(info.ID)
        sizes = files.read_scalars(info.SIZE_BYTES)
        counts = files.read_scalars(info.NUM_CHUNK_REFS)
    else:
        spans = root.find_vectors(table.MANIFEST_FILES, _MANIFEST_FILE_INFO.itemsize, align=8)
        start, count = int(spans.start[0]), int(spans.count[0])
        items = root.buffer.view_items(start, count, _MANIFEST_FILE_INFO)
        ids, sizes, counts = items["id"], items["size_bytes"], items["num_chunk_refs"]
    root.buffer.require_ascending(ids, "manifest files")
    return ManifestFiles(ids, sizes, counts)


def encode_snapshot(snapshot: Snapshot, *, spec_version: int, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode a snapshot file; nodes and manifest files are sorted."""
    require_distinct(snapshot)
    if is_small(len(snapshot.nodes) + len(snapshot.manifest_files)):
        with suppress(*UNFIT):
            return direct_snapshot.write_snapshot(snapshot, spec_version=spec_version, level=level)
    return _write_columns(snapshot, spec_version=spec_version, level=level)


def _write_columns(snapshot: Snapshot, *, spec_version: int, level: int) -> bytes:
    layout = Layout(f"snapshot {snapshot.id} with {len(snapshot.nodes)} nodes")
    table = schema.Snapshot
    has_parent = spec_version == 1 and snapshot.parent_id is not None
    columns = [table.ID, table.NODES, table.FLUSHED_AT, table.MESSAGE, table.METADATA]
    columns.append(table.MANIFEST_FILES)
    if has_parent:
        columns.append(table.PARENT_ID)
    if spec_version > 1:
        columns.append(table.MANIFEST_FILES_V2)
    root = layout.add_records(1, columns)
    root.fill(table.ID, np.frombuffer(snapshot.id.raw, np.uint8))
    if snapshot.parent_id is not None and has_parent:
        root.fill(table.PARENT_ID, np.frombuffer(snapshot.parent_id.raw, np.uint8))
    root.fill(table.FLUSHED_AT, to_microseconds(snapshot.flushed_at))
    root.point(table.MESSAGE, layout.add_blobs(Strings.of([snapshot.message])))
    root.point(table.METADATA, write_metadata(layout, [snapshot.metadata], spec_version))
    _write_manifest_files(layout, root, snapshot, spec_version)
    nodes = sorted(snapshot.nodes, key=lambda node: node.path.value)
    _write_nodes(layout, root, nodes, spec_version)
    return layout.pack(root, file_type=FileType.SNAPSHOT, spec_version=spec_version, level=level)


def _write_manifest_files(
    layout: Layout, root: Records, snapshot: Snapshot, spec_version: int
) -> None:
    table = schema.Snapshot
    files = sorted(snapshot.manifest_files, key=lambda info: info.id.raw)
    ids = to_id_rows([info.id for info in files], ManifestId)
    count = len(files) if spec_version == 1 else 0
    position, items = layout.add_vectors(np.array([count]), _MANIFEST_FILE_INFO, align=8)
    root.point(table.MANIFEST_FILES, position)
    if spec_version == 1:
        items["id"] = ids
        assign(items["size_bytes"], [info.size_bytes for info in files], "size_bytes")
        refs = [info.num_chunk_refs for info in files]
        assign(items["num_chunk_refs"], refs, "num_chunk_refs")
        return
    info_table = schema.ManifestFileInfoV2
    fields = [info_table.ID, info_table.SIZE_BYTES, info_table.NUM_CHUNK_REFS]
    position, records = layout.add_table_vectors([len(files)], fields)
    root.point(table.MANIFEST_FILES_V2, position)
    records.fill(info_table.ID, ids)
    records.fill(info_table.SIZE_BYTES, [info.size_bytes for info in files])
    records.fill(info_table.NUM_CHUNK_REFS, [info.num_chunk_refs for info in files])


def _write_nodes(
    layout: Layout, root: Records, nodes: Sequence[NodeSnapshot], spec_version: int
) -> None:
    table = schema.NodeSnapshot
    fields = [table.ID, table.PATH, table.USER_DATA, table.NODE_DATA_TYPE, table.NODE_DATA]
    position, records = layout.add_table_vectors([len(nodes)], fields)
    root.point(schema.Snapshot.NODES, position)
    records.fill(table.ID, to_id_rows([node.id for node in nodes], NodeId))
    records.point(table.PATH, layout.add_blobs(Strings.of([str(node.path) for node in nodes])))
    # Equal metadata, such as that of most groups, is stored once.
    codes, distinct = Strings.of([node.user_data for node in nodes]).unique()
    records.point(table.USER_DATA, layout.add_blobs(distinct)[codes])
    arrays = [node.node_data for node in nodes if isinstance(node.node_data, ArrayNodeData)]
    is_array = np.array([isinstance(node.node_data, ArrayNodeData) for node in nodes], bool)
    records.fill(table.NODE_DATA_TYPE, np.where(is_array, ARRAY, GROUP))
    targets = np.full(len(nodes), layout.add_records(1, []).positions[0])  # shared by all groups
    targets[is_array] = _write_arrays(layout, arrays, spec_version)
    records.point(table.NODE_DATA, targets)


def _write_arrays(
    layout: Layout, arrays: Sequence[ArrayNodeData], spec_version: int
) -> NDArray[np.int64]:
    table = schema.ArrayNodeData
    fields = [table.SHAPE, table.DIMENSION_NAMES, table.MANIFESTS]
    if spec_version > 1:
        fields.append(table.SHAPE_V2)
    records = layout.add_records(len(arrays), fields)
    _write_shapes(layout, records, arrays, spec_version)
    _write_dimension_names(layout, records, arrays)
    _write_manifest_refs(layout, records, arrays)
    return records.positions


def _write_shapes(
    layout: Layout, records: Records, arrays: Sequence[ArrayNodeData], spec_version: int
) -> None:
    table = schema.ArrayNodeData
    counts = np.array([len(array.shape) for array in arrays], np.int64)
    dimensions = [dimension for array in arrays for dimension in array.shape]
    if spec_version == 1:
        positions, items = layout.add_vectors(counts, _DIMENSION_SHAPE, align=8)
        array_lengths = [dimension.array_length for dimension in dimensions]
        assign(items["f0"], array_lengths, "array_length")
        chunk_lengths = [get_chunk_length(dimension) for dimension in dimensions]
        assign(items["f1"], chunk_lengths, "chunk_length")
        records.point(table.SHAPE, positions)
        return
    empty, _ = layout.add_vectors(np.zeros(1, np.int64), _DIMENSION_SHAPE, align=8)
    records.point(table.SHAPE, np.broadcast_to(empty, (len(arrays),)))
    shape = schema.DimensionShapeV2
    positions, tables = layout.add_table_vectors(counts, [shape.ARRAY_LENGTH, shape.NUM_CHUNKS])
    records.point(table.SHAPE_V2, positions)
    tables.fill(shape.ARRAY_LENGTH, [dimension.array_length for dimension in dimensions])
    tables.fill(shape.NUM_CHUNKS, [dimension.num_chunks for dimension in dimensions])


def _write_dimension_names(
    layout: Layout, records: Records, arrays: Sequence[ArrayNodeData]
) -> None:
    names = [array.dimension_names or () for array in arrays]
    name_field = schema.DimensionName.NAME
    positions, tables = layout.add_table_vectors([len(row) for row in names], [name_field])
    is_named = np.array([array.dimension_names is not None for array in arrays], bool)
    records.point(schema.ArrayNodeData.DIMENSION_NAMES, positions, is_named)
    flat = [name for row in names for name in row]
    texts = layout.add_blobs(Strings.of([name or "" for name in flat]))
    tables.point(name_field, texts, np.array([name is not None for name in flat], bool))


def _write_manifest_refs(layout: Layout, records: Records, arrays: Sequence[ArrayNodeData]) -> None:
    table = schema.ManifestRef
    counts = np.array([len(array.manifests) for array in arrays], np.int64)
    positions, tables = layout.add_table_vectors(counts, [table.OBJECT_ID, table.EXTENTS])
    records.point(schema.ArrayNodeData.MANIFESTS, positions)
    refs = [ref for array in arrays for ref in array.manifests]
    tables.fill(table.OBJECT_ID, to_id_rows([ref.id for ref in refs], ManifestId))
    counts = np.array([len(ref.extents.ranges) for ref in refs], np.int64)
    positions, items = layout.add_vectors(counts, _INDEX_RANGE)
    tables.point(table.EXTENTS, positions)
    ranges = [pair for ref in refs for pair in ref.extents.ranges]
    assign(items["f0"], [pair.start for pair in ranges], "chunk index")
    assign(items["f1"], [pair.stop for pair in ranges], "chunk index")
