"""Row-wise codec of snapshots, for few nodes; see `icefloe.format.snapshot`."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import schema
from icefloe.format.direct_reader import DirectBuffer
from icefloe.format.direct_writer import DirectWriter, TableLayout
from icefloe.format.envelope import FileType
from icefloe.format.metadata import add_metadata, read_table_metadata, require_ascending
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotFiles, SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.format.direct_reader import DirectTable
    from icefloe.model.node import NodeData

ARRAY, GROUP = 1, 2
"""Types of nodes in the flatbuffers union."""

_SHAPE, _RANGE, _FILE_INFO = Struct("<QQ"), Struct("<II"), Struct("<12s4xQI4x")

_S, _N, _A = schema.Snapshot, schema.NodeSnapshot, schema.ArrayNodeData
_ROOT_FIELDS = (_S.ID, _S.FLUSHED_AT, _S.NODES, _S.MESSAGE, _S.METADATA, _S.MANIFEST_FILES)
_ROOT_V1 = TableLayout(*_ROOT_FIELDS, _S.PARENT_ID)
_ROOT_V1_FIRST = TableLayout(*_ROOT_FIELDS)
_ROOT_V2 = TableLayout(*_ROOT_FIELDS, _S.MANIFEST_FILES_V2)
_NODE = TableLayout(_N.ID, _N.NODE_DATA_TYPE, _N.PATH, _N.USER_DATA, _N.NODE_DATA)
_NO_DATA = TableLayout()
_ARRAY_LAYOUTS = {
    (is_v1, is_named): TableLayout(
        _A.SHAPE,
        _A.MANIFESTS,
        *([] if is_v1 else [_A.SHAPE_V2]),
        *([_A.DIMENSION_NAMES] if is_named else []),
    )
    for is_v1 in (False, True)
    for is_named in (False, True)
}
_DIMENSION = TableLayout(schema.DimensionShapeV2.ARRAY_LENGTH, schema.DimensionShapeV2.NUM_CHUNKS)
_NAME, _NO_NAME = TableLayout(schema.DimensionName.NAME), TableLayout()
_REF = TableLayout(schema.ManifestRef.OBJECT_ID, schema.ManifestRef.EXTENTS)
_INFO = schema.ManifestFileInfoV2
_FILE = TableLayout(_INFO.ID, _INFO.SIZE_BYTES, _INFO.NUM_CHUNK_REFS)


def read_snapshot(body: bytes, file: str, spec_version: int) -> Snapshot:
    """Read a snapshot from a decompressed file."""
    root = DirectBuffer(body, file).get_root("Snapshot")
    info = _read_info(root, spec_version)
    is_v1 = spec_version == 1
    return Snapshot(
        id=info.id,
        parent_id=info.parent_id,
        flushed_at=info.flushed_at,
        message=info.message,
        metadata=info.metadata,
        nodes=_read_nodes(root, is_v1=is_v1),
        manifest_files=_read_manifest_files(root, is_v1=is_v1),
    )


def read_snapshot_info(body: bytes, file: str, spec_version: int) -> SnapshotInfo:
    """Read the history entry of a snapshot, and check nothing else."""
    return _read_info(DirectBuffer(body, file).get_root("Snapshot"), spec_version)


def read_snapshot_files(body: bytes, file: str, spec_version: int) -> SnapshotFiles:
    """Read which files a snapshot refers to, and check nothing else."""
    root = DirectBuffer(body, file).get_root("Snapshot")
    infos = _read_manifest_files(root, is_v1=spec_version == 1)
    listed = {info.id.raw for info in infos}
    others = {}
    for node in root.get_tables(_S.NODES, "NodeSnapshot"):
        kind = node.read_scalar(_N.NODE_DATA_TYPE)
        if kind == ARRAY:
            array = node.get_table(_N.NODE_DATA, "ArrayNodeData")
            for ref in array.get_tables(_A.MANIFESTS, "ManifestRef"):
                raw = ref.read_struct(schema.ManifestRef.OBJECT_ID)
                if raw not in listed:
                    others[raw] = ManifestFileInfo(ManifestId(raw), 0, 0)
        elif kind != GROUP:
            # Its files are unknown, and garbage collection must not delete them.
            root.buffer.fail(f"has a node of the unknown type {kind}")
    snapshot_id = SnapshotId(root.read_struct(_S.ID))
    return SnapshotFiles(snapshot_id, _read_parent(root, spec_version), (*infos, *others.values()))


def _read_info(root: DirectTable, spec_version: int) -> SnapshotInfo:
    return SnapshotInfo(
        SnapshotId(root.read_struct(_S.ID)),
        _read_parent(root, spec_version),
        from_microseconds(root.read_scalar(_S.FLUSHED_AT), root.buffer.file),
        root.read_string(_S.MESSAGE) or "",
        read_table_metadata(root, _S.METADATA, spec_version, required=True),
    )


def _read_parent(root: DirectTable, spec_version: int) -> SnapshotId | None:
    # In spec version 2, the file `repo` records ancestry, and a parent here is ignored.
    if spec_version > 1 or not root.has(_S.PARENT_ID):
        return None
    return SnapshotId(root.read_struct(_S.PARENT_ID))


def _read_nodes(root: DirectTable, *, is_v1: bool) -> tuple[NodeSnapshot, ...]:
    tables = root.get_tables(_S.NODES, "NodeSnapshot")
    nodes = tuple([read_node(table, is_v1=is_v1) for table in tables])
    require_ascending([node.path.value for node in nodes], "list of nodes", root.buffer.file)
    if len({node.id for node in nodes}) < len(nodes):
        root.buffer.fail("has two nodes with the same id")
    return nodes


def read_node(table: DirectTable, *, is_v1: bool) -> NodeSnapshot:
    """Read one node."""
    kind = table.read_scalar(_N.NODE_DATA_TYPE)
    data: NodeData
    if kind == ARRAY:
        data = _read_array(table.get_table(_N.NODE_DATA, "ArrayNodeData"), is_v1=is_v1)
    elif kind == GROUP:
        table.find_target(_N.NODE_DATA, required=True)  # checked, but never read
        data = GroupNodeData()
    else:
        table.buffer.fail(f"has a node of the unknown type {kind}")
    try:
        path = Path(table.read_string(_N.PATH) or "")
    except InvalidInputError as error:
        raise FormatError(error.message, file=table.buffer.file) from error
    user_data = table.read_blob(_N.USER_DATA) or b""
    return NodeSnapshot(NodeId(table.read_struct(_N.ID)), path, user_data, data)


def _read_array(array: DirectTable, *, is_v1: bool) -> ArrayNodeData:
    shape = _read_shape(array, is_v1=is_v1)
    names = None
    if array.has(_A.DIMENSION_NAMES):
        tables = array.get_tables(_A.DIMENSION_NAMES, "DimensionName")
        field = schema.DimensionName.NAME
        # A dimension without a name is an absent string or an empty one.
        names = tuple([table.read_string(field, required=False) or None for table in tables])
    refs = array.get_tables(_A.MANIFESTS, "ManifestRef")
    manifests = tuple([_read_manifest_ref(ref, len(shape)) for ref in refs])
    return ArrayNodeData(shape, names, manifests)


def _read_shape(array: DirectTable, *, is_v1: bool) -> tuple[DimensionShape, ...]:
    if array.has(_A.SHAPE_V2):
        if is_v1:
            array.buffer.fail("has spec version 1 but array shapes of spec version 2")
        table = schema.DimensionShapeV2
        return tuple(
            [
                DimensionShape(
                    dimension.read_scalar(table.ARRAY_LENGTH),
                    dimension.read_scalar(table.NUM_CHUNKS),
                )
                for dimension in array.get_tables(_A.SHAPE_V2, "DimensionShapeV2")
            ]
        )
    if not array.has(_A.SHAPE):
        array.buffer.fail("has an array without a shape")
    pairs = array.read_items(_A.SHAPE, _SHAPE, align=8)
    shape = [DimensionShape.regular(*pair) for pair in pairs]
    if not is_v1:  # spec version 2 does not record the chunk length
        shape = [replace(dimension, chunk_length=None) for dimension in shape]
    return tuple(shape)


def _read_manifest_ref(ref: DirectTable, ndim: int) -> ManifestRef:
    table = schema.ManifestRef
    ranges = tuple([ChunkIndexRange(*pair) for pair in ref.read_items(table.EXTENTS, _RANGE)])
    for extent in ranges:
        if extent.start > extent.stop:
            ref.buffer.fail("has a manifest whose extents end before they start")
    # Extents without ranges cover the whole array.
    if ranges and len(ranges) != ndim:
        ref.buffer.fail("has a manifest whose extents and array differ in rank")
    return ManifestRef(ManifestId(ref.read_struct(table.OBJECT_ID)), ManifestExtents(ranges))


def _read_manifest_files(root: DirectTable, *, is_v1: bool) -> tuple[ManifestFileInfo, ...]:
    if root.has(_S.MANIFEST_FILES_V2):
        if is_v1:
            root.buffer.fail("has spec version 1 but a list of manifests of spec version 2")
        rows = [
            (
                file.read_struct(_INFO.ID),
                file.read_scalar(_INFO.SIZE_BYTES),
                file.read_scalar(_INFO.NUM_CHUNK_REFS),
            )
            for file in root.get_tables(_S.MANIFEST_FILES_V2, "ManifestFileInfoV2")
        ]
    else:
        rows = [*root.read_items(_S.MANIFEST_FILES, _FILE_INFO, align=8)]
    infos = tuple([ManifestFileInfo(ManifestId(raw), size, count) for raw, size, count in rows])
    raw_ids = [raw for raw, *_ in rows]
    if sorted({*raw_ids}) != raw_ids:
        root.buffer.fail("its manifest files must be sorted by id, without duplicates")
    return infos


def write_snapshot(snapshot: Snapshot, *, spec_version: int, level: int) -> bytes:
    """Encode a snapshot file; nodes and manifest files are sorted."""
    writer = DirectWriter()
    is_v1 = spec_version == 1
    layout = _ROOT_V2
    values = [snapshot.id.raw, to_microseconds(snapshot.flushed_at), 0, 0, 0, 0, 0]
    if is_v1:
        layout = _ROOT_V1_FIRST
        if snapshot.parent_id is not None:
            layout, values[-1] = _ROOT_V1, snapshot.parent_id.raw
    root = writer.add_table(layout, *values)
    writer.point_field(root, layout, _S.MESSAGE, writer.add_blob(snapshot.message.encode()))
    metadata = add_metadata(writer, snapshot.metadata, spec_version)
    writer.point_field(root, layout, _S.METADATA, metadata)
    infos = snapshot.manifest_files
    rows = sorted([(info.id.raw, info.size_bytes, info.num_chunk_refs) for info in infos])
    if is_v1:
        items = b"".join([_FILE_INFO.pack(*row) for row in rows])
        vector = writer.add_items(len(rows), items, align=8)
        writer.point_field(root, layout, _S.MANIFEST_FILES, vector)
    else:
        vector = writer.add_items(0, b"", align=8)
        writer.point_field(root, layout, _S.MANIFEST_FILES, vector)
        vector = writer.add_pointers(len(rows))
        writer.point_field(root, layout, _S.MANIFEST_FILES_V2, vector)
        writer.point_items(vector, [writer.add_table(_FILE, *row) for row in rows])
    vector = writer.add_pointers(len(snapshot.nodes))
    writer.point_field(root, layout, _S.NODES, vector)
    nodes = sorted(snapshot.nodes, key=lambda node: node.path.value)
    _add_nodes(writer, vector, nodes, is_v1=is_v1)
    return writer.pack(root, file_type=FileType.SNAPSHOT, spec_version=spec_version, level=level)


def _add_nodes(
    writer: DirectWriter, vector: int, nodes: Sequence[NodeSnapshot], *, is_v1: bool
) -> None:
    tables = [
        writer.add_table(_NODE, node.id.raw, ARRAY if node.is_array else GROUP, 0, 0, 0)
        for node in nodes
    ]
    writer.point_items(vector, tables)
    blobs: dict[bytes, int] = {}  # equal metadata, such as that of most groups, is stored once
    no_data = writer.add_table(_NO_DATA)  # shared by all groups
    for table, node in zip(tables, nodes, strict=True):
        writer.point_field(table, _NODE, _N.PATH, writer.add_blob(node.path.value.encode()))
        if node.user_data not in blobs:
            blobs[node.user_data] = writer.add_blob(node.user_data)
        writer.point_field(table, _NODE, _N.USER_DATA, blobs[node.user_data])
        data = node.node_data
        if isinstance(data, ArrayNodeData):
            target = _add_array(writer, data, is_v1=is_v1)
        else:
            target = no_data
        writer.point_field(table, _NODE, _N.NODE_DATA, target)


def _add_array(writer: DirectWriter, array: ArrayNodeData, *, is_v1: bool) -> int:
    names = array.dimension_names
    layout = _ARRAY_LAYOUTS[is_v1, names is not None]
    position = writer.add_table(layout, *[0] * len(layout.offsets))
    if is_v1:
        pairs = [(part.array_length, get_chunk_length(part)) for part in array.shape]
        items = b"".join([_SHAPE.pack(*pair) for pair in pairs])
        vector = writer.add_items(len(pairs), items, align=8)
        writer.point_field(position, layout, _A.SHAPE, vector)
    else:
        vector = writer.add_items(0, b"", align=8)
        writer.point_field(position, layout, _A.SHAPE, vector)
        rows = [(dimension.array_length, dimension.num_chunks) for dimension in array.shape]
        vector = writer.add_pointers(len(rows))
        writer.point_field(position, layout, _A.SHAPE_V2, vector)
        writer.point_items(vector, [writer.add_table(_DIMENSION, *row) for row in rows])
    if names is not None:
        vector = writer.add_pointers(len(names))
        writer.point_field(position, layout, _A.DIMENSION_NAMES, vector)
        writer.point_items(vector, [_add_name(writer, name) for name in names])
    vector = writer.add_pointers(len(array.manifests))
    writer.point_field(position, layout, _A.MANIFESTS, vector)
    tables = [writer.add_table(_REF, ref.id.raw, 0) for ref in array.manifests]
    writer.point_items(vector, tables)
    for table, ref in zip(tables, array.manifests, strict=True):
        ranges = ref.extents.ranges
        vector = writer.add_items(len(ranges), b"".join([_RANGE.pack(*pair) for pair in ranges]))
        writer.point_field(table, _REF, schema.ManifestRef.EXTENTS, vector)
    return position


def _add_name(writer: DirectWriter, name: str | None) -> int:
    if name is None:
        return writer.add_table(_NO_NAME)
    table = writer.add_table(_NAME, 0)
    writer.point_field(table, _NAME, schema.DimensionName.NAME, writer.add_blob(name.encode()))
    return table


def get_chunk_length(dimension: DimensionShape) -> int:
    """Return the chunk length of a dimension for spec version 1."""
    if dimension.chunk_length is not None:
        return dimension.chunk_length
    # Spec version 2 does not record it: return a length that gives the same number of chunks.
    return max(1, -(-dimension.array_length // max(1, dimension.num_chunks)))
