"""What a repository knows of itself, as tables: snapshots, references, nodes, chunks and changes.

The names follow Iceberg's metadata tables where those have an equal. Tables of references to chunks
are made of the columns of manifests, one manifest at a time, by whichever task has it; nothing
loops over references.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.errors import ErrorKind, FormatError
from icefloe.inspection.metadata_file import parse_json_or_base64
from icefloe.inspection.repository import resolve_ref
from icefloe.model.arrow import to_dictionary_array
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ManifestId
from icefloe.model.node import ArrayNodeData
from icefloe.ops import UpdateType
from icefloe.session import contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.model.manifest import ChunkPayloads
    from icefloe.model.node import NodeSnapshot
    from icefloe.session import Session
    from icefloe.snapshots import SnapshotInfo
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource

_TIME: Final = pa.timestamp("us", "UTC")
_TEXTS: Final = pa.list_(pa.string())
_NUMBERS: Final = pa.list_(pa.int64())
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)

_BATCH_ROWS: Final = 100_000
_REFS_PER_TASK: Final = 1_000_000
"""So that a task has something to do, and its manifests fit into memory as columns."""

Task = tuple[str, ...]
"""The manifests that a task reads; empty for tables that are made at once."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """One metadata table.

    Parameters
    ----------
    schema
        Its columns.
    read
        Makes the rows of one task.
    by_manifest
        Whether tasks share the manifests of a snapshot.
    """

    schema: pa.Schema
    read: Callable[[SnapshotSource, ReadOptions, Task], Iterator[pa.RecordBatch]]
    by_manifest: bool = False

    def tasks(self, source: SnapshotSource) -> list[Task]:
        """Cut the work into tasks."""
        return _by_manifest(source.session()) if self.by_manifest else [()]


# -- snapshots and references

_SNAPSHOTS: Final = pa.schema(
    [
        ("committed_at", _TIME),
        ("snapshot_id", pa.string()),
        ("parent_id", pa.string()),
        ("message", pa.string()),
        ("metadata", pa.string()),
        ("branches", _TEXTS),
        ("tags", _TEXTS),
    ]
)
_HISTORY: Final = pa.schema(
    [
        ("made_current_at", _TIME),
        ("snapshot_id", pa.string()),
        ("parent_id", pa.string()),
        ("is_current_ancestor", pa.bool_()),
        ("message", pa.string()),
        ("metadata", pa.string()),
    ]
)
_REFS: Final = pa.schema(
    [
        ("name", pa.string()),
        ("type", pa.string()),
        ("snapshot_id", pa.string()),
        ("committed_at", _TIME),
        ("message", pa.string()),
    ]
)
_OPS_LOG: Final = pa.schema(
    [
        ("updated_at", _TIME),
        ("operation", pa.string()),
        ("ref", pa.string()),
        ("snapshot_id", pa.string()),
        ("previous_snapshot_id", pa.string()),
        ("details", pa.string()),
        ("backup_path", pa.string()),
    ]
)


def _read_snapshots(source: SnapshotSource, _: ReadOptions, __: Task) -> Iterator[pa.RecordBatch]:
    refs = source.session().connection.refs.pin()
    branches, tags = refs.fetch_branches(), refs.fetch_tags()
    reachable = refs.fetch_reachable({*branches.values(), *tags.values()})
    ordered = sorted(reachable.values(), key=lambda info: info.flushed_at, reverse=True)
    yield from _batches(
        _SNAPSHOTS,
        (
            (
                info.flushed_at,
                str(info.id),
                None if info.parent_id is None else str(info.parent_id),
                info.message,
                _json(dict(info.metadata)),
                sorted(name for name, target in branches.items() if target == info.id),
                sorted(name for name, target in tags.items() if target == info.id),
            )
            for info in ordered
        ),
    )


def _read_history(
    source: SnapshotSource, options: ReadOptions, _: Task
) -> Iterator[pa.RecordBatch]:
    repository = source.repository
    line = list(repository.ancestry(snapshot_id=source.snapshot_id))
    rows: list[tuple[datetime, bool, str, SnapshotInfo | None]] = [
        (info.written_at, True, info.id, info) for info in line
    ]
    at_the_tip = options.tag is None and options.snapshot is None and options.as_of is None
    if at_the_tip and repository.spec_version > 1:
        seen = {info.id for info in line}
        for when, snapshot_id in _left_behind(source, options.branch or "main"):
            if snapshot_id not in seen:
                seen.add(snapshot_id)
                rows.append((when, False, snapshot_id, _find_snapshot(source, snapshot_id)))
    rows.sort(key=lambda row: row[0], reverse=True)
    yield from _batches(
        _HISTORY,
        (
            (
                when,
                snapshot_id,
                None if info is None else info.parent_id,
                is_ancestor,
                None if info is None else info.message,
                None if info is None else _json(dict(info.metadata)),
            )
            for when, is_ancestor, snapshot_id, info in rows
        ),
    )


def _left_behind(source: SnapshotSource, branch: str) -> Iterator[tuple[Any, str]]:
    """Yield what the branch once pointed at: commits that a reset or an amendment took from it."""
    for update in source.repository.ops_log():
        match update.kind:
            case UpdateType.NewCommit(name, snapshot_id) if name == branch:
                yield update.updated_at, snapshot_id
            case UpdateType.CommitAmended(name, _, snapshot_id) if name == branch:
                yield update.updated_at, snapshot_id


def _find_snapshot(source: SnapshotSource, snapshot_id: str) -> SnapshotInfo | None:
    try:
        return source.repository.lookup_snapshot(snapshot_id)
    except KeyError:  # expired since
        return None


def _read_refs(source: SnapshotSource, _: ReadOptions, __: Task) -> Iterator[pa.RecordBatch]:
    refs = source.session().connection.refs.pin()
    named = [("BRANCH", refs.fetch_branches()), ("TAG", refs.fetch_tags())]
    rows = []
    for kind, found in named:
        for name, target in sorted(found.items()):
            info = refs.fetch_snapshot_info(target)
            rows.append((name, kind, str(target), info.flushed_at, info.message))
    yield from _batches(_REFS, rows)


def _read_ops_log(source: SnapshotSource, _: ReadOptions, __: Task) -> Iterator[pa.RecordBatch]:
    yield from _batches(_OPS_LOG, map(_operation, source.repository.ops_log()))


def _operation(update: Any) -> tuple[Any, ...]:
    kind = update.kind
    details = {field.name: _plain(getattr(kind, field.name)) for field in fields(kind)}
    return (
        update.updated_at,
        type(kind).__name__,
        details.get("branch", details.get("name")),
        details.get("new_snap_id"),
        details.get("previous_snap_id"),
        _json(details),
        update.backup_path,
    )


# -- what a snapshot holds

_NODES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("type", pa.string()),
        ("node_id", pa.string()),
        ("data_type", pa.string()),
        ("dimension_names", _TEXTS),
        ("shape", _NUMBERS),
        ("chunk_shape", _NUMBERS),
        ("num_chunks", pa.int64()),
        ("num_manifests", pa.int64()),
        ("codecs", pa.string()),
        ("attributes", pa.string()),
    ]
)
_MANIFESTS: Final = pa.schema(
    [
        ("manifest_id", pa.string()),
        ("size_bytes", pa.int64()),
        ("num_chunk_refs", pa.int64()),
        ("arrays", _TEXTS),
    ]
)


def _read_nodes(source: SnapshotSource, _: ReadOptions, __: Task) -> Iterator[pa.RecordBatch]:
    nodes = contents.base_snapshot(source.session()).nodes
    yield from _batches(_NODES, map(_node, nodes))


def _node(node: NodeSnapshot) -> tuple[Any, ...]:
    metadata = parse_json_or_base64(node.user_data)
    metadata = metadata if isinstance(metadata, dict) else {}
    attributes = _json(metadata.get("attributes") or {})
    common = (node.path.value, node.kind.name.lower(), str(node.id))
    if not isinstance(node.node_data, ArrayNodeData):
        return (*common, None, None, None, None, None, None, None, attributes)
    data = node.node_data
    names = data.dimension_names
    data_type = metadata.get("data_type")
    grid = metadata.get("chunk_grid", {})
    chunk_shape = grid.get("configuration", {}).get("chunk_shape")
    return (
        *common,
        data_type if isinstance(data_type, str) else _json(data_type),
        None if names is None else list(names),
        [dimension.array_length for dimension in data.shape],
        chunk_shape if isinstance(chunk_shape, list) else None,
        int(np.prod([dimension.num_chunks for dimension in data.shape], dtype=object)),
        len(data.manifests),
        _json(metadata.get("codecs")),
        attributes,
    )


def _read_manifests(source: SnapshotSource, _: ReadOptions, __: Task) -> Iterator[pa.RecordBatch]:
    snapshot = contents.base_snapshot(source.session())
    arrays: dict[ManifestId, list[str]] = {}
    for node in snapshot.nodes:
        for manifest_id in _manifests_of(node):
            arrays.setdefault(manifest_id, []).append(node.path.value)
    yield from _batches(
        _MANIFESTS,
        (
            (str(info.id), info.size_bytes, info.num_chunk_refs, arrays.get(info.id, []))
            for info in snapshot.manifest_files
        ),
    )


# -- references to chunks

_CHUNKS: Final = pa.schema(
    [
        ("path", pa.string()),
        ("chunk", _NUMBERS),
        ("type", pa.string()),
        ("chunk_id", pa.string()),
        ("location", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", _TIME),
        ("manifest_id", pa.string()),
    ]
)
_FILES: Final = pa.schema(
    [
        ("location", pa.string()),
        ("num_chunks", pa.int64()),
        ("total_bytes", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", _TIME),
    ]
)


def _by_manifest(session: Session) -> list[Task]:
    """Share the manifests of a snapshot among tasks, by the number of their references."""
    tasks: list[list[str]] = []
    room = 0
    for info in contents.base_snapshot(session).manifest_files:
        if not tasks or room < info.num_chunk_refs:
            tasks.append([])
            room = _REFS_PER_TASK
        tasks[-1].append(str(info.id))
        room -= info.num_chunk_refs
    return [tuple(task) for task in tasks]


def _read_chunks(source: SnapshotSource, _: ReadOptions, task: Task) -> Iterator[pa.RecordBatch]:
    manifest_ids = map(ManifestId.parse, task)
    for manifest_id, node, refs in contents.refs_of_manifests(source.session(), manifest_ids):
        for first in range(0, len(refs), _BATCH_ROWS):
            rows = slice(first, first + _BATCH_ROWS)
            path, text = node.path.value, str(manifest_id)
            yield _chunk_rows(text, path, refs.coords[rows], refs.payloads.rows(rows))


def _chunk_rows(
    manifest_id: str, path: str, coords: NDArray[np.uint32], payloads: ChunkPayloads
) -> pa.RecordBatch:
    count, ndim = coords.shape
    kinds = pa.array([kind.name.lower() for kind in ChunkKind])
    # Where inline bytes lie inside of a manifest is nobody's business.
    offset = pa.array(payloads.offset.astype(np.int64), mask=payloads.kind == ChunkKind.INLINE)
    columns = [
        pa.repeat(path, count),
        pa.ListArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * ndim),
            pa.array(coords.reshape(-1).astype(np.int64)),
        ),
        kinds.take(pa.array(payloads.kind.astype(np.int64) - min(ChunkKind))),
        _id_texts(payloads.chunk_id, payloads.kind == ChunkKind.NATIVE),
        _texts(payloads.location, payloads.locations),
        offset,
        pa.array(payloads.length.astype(np.int64)),
        _texts(payloads.etag, payloads.etags),
        _times(payloads.last_modified),
        pa.repeat(manifest_id, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_CHUNKS)


def _read_files(source: SnapshotSource, _: ReadOptions, task: Task) -> Iterator[pa.RecordBatch]:
    """Sum up by file, manifest after manifest; memory grows with files, not with references."""
    session = source.session()
    del task  # one task: a file may be in any manifest
    parts = [_FILES.empty_table()]
    waiting = 0
    manifest_ids = [info.id for info in contents.base_snapshot(session).manifest_files]
    for _manifest_id, _node, refs in contents.refs_of_manifests(session, manifest_ids):
        payloads = refs.payloads
        virtual = np.flatnonzero(payloads.kind == ChunkKind.VIRTUAL)
        if len(virtual):
            parts.append(_file_rows(payloads.rows(virtual)))
            waiting += len(parts[-1])
        # As much again as there is: so each row is summed a few times, not once per manifest.
        if waiting > max(_BATCH_ROWS, len(parts[0])):
            parts, waiting = [_summed(pa.concat_tables(parts))], 0
    counted = _summed(pa.concat_tables(parts))
    for batch in counted.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=_FILES)


def _file_rows(payloads: ChunkPayloads) -> pa.Table:
    """Count the chunks of each file in some virtual references."""
    number = payloads.location
    files, first = np.unique(number, return_index=True)
    places = np.searchsorted(files, number)
    totals = np.zeros(len(files), np.int64)
    np.add.at(totals, places, payloads.length.astype(np.int64))
    return pa.table(
        [
            _texts(files, payloads.locations),
            pa.array(np.bincount(places, minlength=len(files)).astype(np.int64)),
            pa.array(totals),
            _texts(payloads.etag[first], payloads.etags),
            _times(payloads.last_modified[first]),
        ],
        schema=_FILES,
    )


def _summed(rows: pa.Table) -> pa.Table:
    """Bring the rows of one file together; where checksums differ, the later one is shown."""
    found = rows.group_by("location").aggregate(
        [("num_chunks", "sum"), ("total_bytes", "sum"), ("etag", "max"), ("last_modified", "max")]
    )
    return pa.table(
        [
            found[name].cast(field.type)
            for name, field in zip(
                ("location", "num_chunks_sum", "total_bytes_sum", "etag_max", "last_modified_max"),
                _FILES,
                strict=True,
            )
        ],
        schema=_FILES,
    )


# -- changes

_CHANGES: Final = pa.schema(
    [
        ("change_type", pa.string()),
        ("path", pa.string()),
        ("new_path", pa.string()),
        ("chunk", _NUMBERS),
    ]
)
_CHANGES_OF_NODES: Final = {
    "new_groups": "group_created",
    "new_arrays": "array_created",
    "deleted_groups": "group_deleted",
    "deleted_arrays": "array_deleted",
    "updated_groups": "group_updated",
    "updated_arrays": "array_updated",
}


def _read_changes(
    source: SnapshotSource, options: ReadOptions, _: Task
) -> Iterator[pa.RecordBatch]:
    refs = source.session().connection.refs.pin()
    before, after = (
        str(resolve_ref(refs, name)) for name in (str(options.from_ref), options.to_ref or "main")
    )
    diff = source.repository.diff(from_snapshot_id=before, to_snapshot_id=after)
    rows: list[tuple[Any, ...]] = [
        (change, path, None, None)
        for name, change in _CHANGES_OF_NODES.items()
        for path in sorted(getattr(diff, name))
    ]
    rows += [("node_moved", old, new, None) for old, new in diff.moved_nodes]
    yield from _batches(_CHANGES, rows)
    for path, chunks in sorted(diff.updated_chunks.items()):
        changed = (("chunk_changed", path, None, chunk) for chunk in chunks)
        yield from _batches(_CHANGES, changed)


METADATA_TABLES: Final[dict[str, MetadataTable]] = {
    "snapshots": MetadataTable(_SNAPSHOTS, _read_snapshots),
    "history": MetadataTable(_HISTORY, _read_history),
    "refs": MetadataTable(_REFS, _read_refs),
    "nodes": MetadataTable(_NODES, _read_nodes),
    "manifests": MetadataTable(_MANIFESTS, _read_manifests),
    "chunks": MetadataTable(_CHUNKS, _read_chunks, by_manifest=True),
    "files": MetadataTable(_FILES, _read_files),
    "changes": MetadataTable(_CHANGES, _read_changes),
    "ops_log": MetadataTable(_OPS_LOG, _read_ops_log),
}


def find_table(source: SnapshotSource, name: str) -> MetadataTable:
    """Return the table of a name.

    Raises
    ------
    FormatError
        If the repository is too old to have it: now, rather than in a task.
    """
    version = source.repository.spec_version
    if name == "ops_log" and version < 2:
        raise FormatError(
            f"ops logs exist from format version 2 on, and {source.repository.storage.url} has "
            f"version {version}: upgrade it with icefloe.upgrade_icechunk_repository, or read "
            "table='history', which every version has",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    return METADATA_TABLES[name]


# -- columns


def _batches(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """Make batches of rows of which there are few."""
    listed = list(rows)
    for first in range(0, len(listed), _BATCH_ROWS):
        columns = zip(*listed[first : first + _BATCH_ROWS], strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )


def _manifests_of(node: NodeSnapshot) -> list[ManifestId]:
    data = node.node_data
    manifests = data.manifests if isinstance(data, ArrayNodeData) else ()
    return list(dict.fromkeys(ref.id for ref in manifests))


def _texts(codes: NDArray[np.int32], table: Any) -> pa.Array:
    if not len(table):
        return pa.nulls(len(codes), pa.string())
    return to_dictionary_array(codes, table).dictionary_decode().cast(pa.string())


def _times(seconds: NDArray[np.uint32]) -> pa.Array:
    return pa.array(seconds.astype(np.int64) * 1_000_000, _TIME, mask=seconds == 0)


def _id_texts(ids: NDArray[np.uint8], has_one: NDArray[np.bool_]) -> pa.Array:
    """Write ids in Crockford base 32, all at once."""
    count = len(ids)
    if not has_one.any():
        return pa.nulls(count, pa.string())
    bits = np.unpackbits(np.ascontiguousarray(ids), axis=1)
    length = -(-bits.shape[1] // 5)
    bits = np.pad(bits, ((0, 0), (0, length * 5 - bits.shape[1])))
    digits = bits.reshape(count, length, 5) @ np.array([16, 8, 4, 2, 1], np.uint8)
    text = np.ascontiguousarray(_DIGITS[digits])
    validity = np.packbits(has_one, bitorder="little")
    offsets = np.arange(count + 1, dtype=np.int32) * length
    return pa.Array.from_buffers(
        pa.string(), count, [pa.py_buffer(one) for one in (validity, offsets, text)]
    )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, str)) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, default=str)
