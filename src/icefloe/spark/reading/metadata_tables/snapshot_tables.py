"""Metadata tables of a snapshot: ``nodes``, ``manifests`` and ``changes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from icefloe.inspection.metadata_file import parse_json_or_base64
from icefloe.model.node import ArrayNodeData, NodeSnapshot
from icefloe.session import contents
from icefloe.spark.reading.metadata_tables.table import (
    INT,
    INTS,
    TEXT,
    TEXTS,
    Column,
    RecordTable,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from icefloe.model.ids import ManifestId
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource


# -- nodes: groups and arrays; columns about arrays are null for groups


class _Node(NamedTuple):
    node: NodeSnapshot
    node_id: str
    metadata: dict[str, Any]


def _fetch_nodes(source: SnapshotSource, _: ReadOptions) -> Iterator[_Node]:
    session = source.open_session()
    describe_id = session.connection.generation.describe_node_id
    for node in contents.get_base_snapshot(session).nodes:
        metadata = parse_json_or_base64(node.user_data)
        node_id = str(describe_id(node.id))
        yield _Node(node, node_id, metadata if isinstance(metadata, dict) else {})


def _make_array_column(
    name: str, column_type: pa.DataType, get_value: Callable[[ArrayNodeData, dict[str, Any]], Any]
) -> Column[_Node]:
    def get_array_value(record: _Node) -> Any:
        data = record.node.node_data
        return get_value(data, record.metadata) if isinstance(data, ArrayNodeData) else None

    return Column(name, column_type, get_array_value)


def _get_data_type(_: ArrayNodeData, metadata: dict[str, Any]) -> str:
    data_type = metadata.get("data_type")
    return data_type if isinstance(data_type, str) else to_json(data_type)


def _get_chunk_shape(_: ArrayNodeData, metadata: dict[str, Any]) -> list[int] | None:
    chunk_shape = metadata.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
    return chunk_shape if isinstance(chunk_shape, list) else None


def _count_chunks(data: ArrayNodeData, _: dict[str, Any]) -> int:
    # Python integers, which do not overflow.
    return int(np.prod([dimension.num_chunks for dimension in data.shape], dtype=object))


NODES: Final = RecordTable[_Node](
    _fetch_nodes,
    Column("path", TEXT, lambda record: record.node.path.value),
    Column("type", TEXT, lambda record: record.node.kind.name.lower()),
    Column("node_id", TEXT, lambda record: record.node_id),
    _make_array_column("data_type", TEXT, _get_data_type),
    _make_array_column("dimension_names", TEXTS, lambda data, _: data.dimension_names),
    _make_array_column("shape", INTS, lambda data, _: [dim.array_length for dim in data.shape]),
    _make_array_column("chunk_shape", INTS, _get_chunk_shape),
    _make_array_column("num_chunks", INT, _count_chunks),
    _make_array_column("num_manifests", INT, lambda data, _: len(data.manifests)),
    _make_array_column("codecs", TEXT, lambda _, metadata: to_json(metadata.get("codecs"))),
    Column("attributes", TEXT, lambda record: to_json(record.metadata.get("attributes") or {})),
)


# -- manifests: the manifest files of a snapshot, and the arrays with references in them


class _Manifest(NamedTuple):
    info: ManifestFileInfo
    array_paths: list[str]


def _fetch_manifests(source: SnapshotSource, _: ReadOptions) -> Iterator[_Manifest]:
    snapshot = contents.get_base_snapshot(source.open_session())
    array_paths: dict[ManifestId, list[str]] = {}
    for node in snapshot.nodes:
        if isinstance(node.node_data, ArrayNodeData):
            for manifest_id in dict.fromkeys(ref.id for ref in node.node_data.manifests):
                array_paths.setdefault(manifest_id, []).append(node.path.value)
    for info in snapshot.manifest_files:
        yield _Manifest(info, array_paths.get(info.id, []))


MANIFESTS: Final = RecordTable[_Manifest](
    _fetch_manifests,
    Column("manifest_id", TEXT, lambda manifest: str(manifest.info.id)),
    Column("size_bytes", INT, lambda manifest: manifest.info.size_bytes),
    Column("num_chunk_refs", INT, lambda manifest: manifest.info.num_chunk_refs),
    Column("arrays", TEXTS, lambda manifest: manifest.array_paths),
)


# -- changes: differences between two snapshots


# Fields of `Diff`, and their values in the column ``change_type``.
_NODE_CHANGES: Final = {
    "new_groups": "group_created",
    "new_arrays": "array_created",
    "deleted_groups": "group_deleted",
    "deleted_arrays": "array_deleted",
    "updated_groups": "group_updated",
    "updated_arrays": "array_updated",
}


class _Change(NamedTuple):
    kind: str
    path: str
    new_path: str | None = None
    chunk: Sequence[int] | None = None


def _fetch_changes(source: SnapshotSource, options: ReadOptions) -> Iterator[_Change]:
    diff = source.repository.diff(from_snapshot_id=options.from_ref, to_snapshot_id=options.to_ref)
    for diff_field, kind in _NODE_CHANGES.items():
        for path in sorted(getattr(diff, diff_field)):
            yield _Change(kind, path)
    for path, new_path in diff.moved_nodes:
        yield _Change("node_moved", path, new_path)
    for path, chunks in sorted(diff.updated_chunks.items()):
        for chunk in chunks:
            yield _Change("chunk_changed", path, chunk=chunk)


CHANGES: Final = RecordTable[_Change](
    _fetch_changes,
    Column("change_type", TEXT, lambda change: change.kind),
    Column("path", TEXT, lambda change: change.path),
    Column("new_path", TEXT, lambda change: change.new_path),
    Column("chunk", INTS, lambda change: change.chunk),
)
