"""Codec of snapshot files (Icechunk spec, "Snapshot Files")."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import schema
from icefloe.format.envelope import DEFAULT_LEVEL, FileType, unpack
from icefloe.format.flatbuffer_reader import FlatBuffer
from icefloe.format.flatbuffer_writer import Layout, assign
from icefloe.format.ids import to_id_rows, to_ids
from icefloe.format.metadata import read_metadata, require_ascending, write_metadata
from icefloe.format.snapshot_checks import require_distinct
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeData,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import ManifestFileInfo, Snapshot
from icefloe.model.strings import Strings, factorize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_reader import Tables
    from icefloe.format.flatbuffer_writer import Records

_ARRAY, _GROUP = 1, 2
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
    """Decode a snapshot file of either spec version."""
    header, body = unpack(data, FileType.SNAPSHOT, file)
    root = FlatBuffer(body, file).get_root("Snapshot")
    table = schema.Snapshot
    is_v1 = header.spec_version == 1
    parent = None
    # In spec version 2, the file `repo` records ancestry, and a parent here is ignored.
    if is_v1 and root.has(table.PARENT_ID)[0]:
        parent = SnapshotId(root.read_structs(table.PARENT_ID).tobytes())
    return Snapshot(
        id=SnapshotId(root.read_structs(table.ID).tobytes()),
        parent_id=parent,
        flushed_at=from_microseconds(int(root.read_scalars(table.FLUSHED_AT)[0]), file),
        message=root.read_texts(table.MESSAGE)[0] or "",
        metadata=read_metadata(root, table.METADATA, header.spec_version, required=True)[0],
        nodes=_read_nodes(root, is_v1=is_v1),
        manifest_files=_read_manifest_files(root, is_v1=is_v1),
    )


def _read_nodes(root: Tables, *, is_v1: bool) -> tuple[NodeSnapshot, ...]:
    table = schema.NodeSnapshot
    _, nodes = root.get_children(schema.Snapshot.NODES, "NodeSnapshot")
    file = root.buffer.file
    paths = [path or "" for path in nodes.read_texts(table.PATH)]
    require_ascending(paths, "list of nodes", file)
    kinds = nodes.read_scalars(table.NODE_DATA_TYPE)
    is_array = kinds == _ARRAY
    if not (is_array | (kinds == _GROUP)).all():
        unknown = kinds[~is_array & (kinds != _GROUP)][0]
        root.buffer.fail(f"has a node of the unknown type {unknown}")
    node_data: list[NodeData] = [GroupNodeData()] * len(nodes)
    rows = np.flatnonzero(is_array)
    arrays = _read_arrays(nodes.get_tables(table.NODE_DATA, "ArrayNodeData", rows), is_v1=is_v1)
    for row, array in zip(rows, arrays, strict=True):
        node_data[row] = array
    ids = to_ids(nodes.read_structs(table.ID), NodeId)
    if len(set(ids)) < len(ids):
        root.buffer.fail("has two nodes with the same id")
    user_data = nodes.read_blobs(table.USER_DATA)
    try:
        return tuple(map(NodeSnapshot, ids, map(Path, paths), user_data, node_data))
    except InvalidInputError as error:
        raise FormatError(error.message, file=file) from error


def _read_arrays(arrays: Tables, *, is_v1: bool) -> list[ArrayNodeData]:
    shapes = _read_shapes(arrays, is_v1=is_v1)
    splits, refs = _read_manifest_refs(arrays, [len(shape) for shape in shapes])
    ends = splits.tolist()
    return [
        ArrayNodeData(shape, names, tuple(refs[start:end]))
        for shape, names, (start, end) in zip(
            shapes, _read_dimension_names(arrays), pairwise(ends), strict=True
        )
    ]


def _read_dimension_names(arrays: Tables) -> list[tuple[str | None, ...] | None]:
    field, name_field = schema.ArrayNodeData.DIMENSION_NAMES, schema.DimensionName.NAME
    splits, tables = arrays.get_children(field, "DimensionName", required=False)
    spans = tables.find_strings(name_field, required=False)
    codes, texts = tables.buffer.factorize(spans, "a dimension name")
    # A dimension without a name is an absent string (code -1) or an empty one.
    distinct = [text or None for text in texts] + [None]
    names = _make_shared(splits, codes.reshape(-1, 1), lambda code: distinct[code])
    has_names = arrays.has(field).tolist()
    return [row if present else None for row, present in zip(names, has_names, strict=True)]


def _read_shapes(arrays: Tables, *, is_v1: bool) -> list[tuple[DimensionShape, ...]]:
    table, shape = schema.ArrayNodeData, schema.DimensionShapeV2
    is_v2 = arrays.has(table.SHAPE_V2)
    # The shape of a scalar array is empty in either version, so the fields themselves are checked.
    if not (is_v2 | arrays.has(table.SHAPE)).all():
        arrays.buffer.fail("has an array without a shape")
    if is_v1 and is_v2.any():
        arrays.buffer.fail("has spec version 1 but array shapes of spec version 2")
    if is_v2.all():
        splits, dimensions = arrays.get_children(table.SHAPE_V2, "DimensionShapeV2")
        lengths = dimensions.read_scalars(shape.ARRAY_LENGTH)
        counts = dimensions.read_scalars(shape.NUM_CHUNKS)
        return _make_shared(splits, np.stack([lengths, counts], 1), DimensionShape)
    if is_v2.any():
        arrays.buffer.fail("has array shapes of both spec versions")
    make = DimensionShape.regular if is_v1 else _make_irregular
    spans = arrays.find_vectors(table.SHAPE, 16, align=8)
    splits, items = arrays.read_numbers(spans, _DIMENSION_SHAPE)
    pairs = np.stack([items["f0"], items["f1"]], 1)
    return _make_shared(splits, pairs, make)


def _make_irregular(array_length: int, chunk_length: int) -> DimensionShape:
    """Make a dimension as in spec version 2, without the chunk length."""
    return replace(DimensionShape.regular(array_length, chunk_length), chunk_length=None)


Item = TypeVar("Item")


def _make_shared(
    splits: NDArray[np.int64], rows: NDArray[Any], make: Callable[..., Item]
) -> list[tuple[Item, ...]]:
    """Make a tuple of items for each array, one item per row; equal tuples are one object."""
    size = rows.itemsize * rows.shape[1]
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    codes, table = factorize(data, splits[:-1] * size, np.diff(splits) * size)
    distinct = [
        tuple(make(*row) for row in part.view(rows.dtype).reshape(-1, rows.shape[1]).tolist())
        for part in np.split(table.data, table.offsets[1:-1])
    ]
    return [distinct[code] for code in codes.tolist()]


def _read_manifest_refs(
    arrays: Tables, ndims: Sequence[int]
) -> tuple[NDArray[np.int64], list[ManifestRef]]:
    table = schema.ManifestRef
    splits, refs = arrays.get_children(schema.ArrayNodeData.MANIFESTS, "ManifestRef")
    range_splits, ranges = refs.read_numbers(refs.find_vectors(table.EXTENTS, 8), _INDEX_RANGE)
    if not (ranges["f0"] <= ranges["f1"]).all():
        refs.buffer.fail("has a manifest whose extents end before they start")
    # Extents without ranges cover the whole array.
    counts, expected = np.diff(range_splits), np.repeat(np.array(ndims, int), np.diff(splits))
    if not ((counts == 0) | (counts == expected)).all():
        refs.buffer.fail("has a manifest whose extents and array differ in rank")
    pairs = np.stack([ranges["f0"], ranges["f1"]], 1)
    boxes = _make_shared(range_splits, pairs, ChunkIndexRange)
    extents = {box: ManifestExtents(box) for box in set(boxes)}
    ids = to_ids(refs.read_structs(table.OBJECT_ID), ManifestId)
    return splits, [
        ManifestRef(manifest_id, extents[box]) for manifest_id, box in zip(ids, boxes, strict=True)
    ]


def _read_manifest_files(root: Tables, *, is_v1: bool) -> tuple[ManifestFileInfo, ...]:
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
    columns = to_ids(ids, ManifestId), sizes.tolist(), counts.tolist()
    return tuple(map(ManifestFileInfo, *columns))


def encode_snapshot(snapshot: Snapshot, *, spec_version: int, level: int = DEFAULT_LEVEL) -> bytes:
    """Encode a snapshot file; nodes and manifest files are sorted."""
    require_distinct(snapshot)
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
    records.fill(table.NODE_DATA_TYPE, np.where(is_array, _ARRAY, _GROUP))
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
        chunk_lengths = [_get_chunk_length(dimension) for dimension in dimensions]
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


def _get_chunk_length(dimension: DimensionShape) -> int:
    if dimension.chunk_length is not None:
        return dimension.chunk_length
    # Spec version 2 does not record it: return a length that gives the same number of chunks.
    return max(1, -(-dimension.array_length // max(1, dimension.num_chunks)))


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
