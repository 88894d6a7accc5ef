"""Row-wise codec of transaction logs, for few changes; see `icefloe.format.transaction_log`."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import schema
from icefloe.format.direct_indices import (
    add_index,
    build_index_columns,
    iter_indices,
    read_index,
)
from icefloe.format.direct_reader import DirectBuffer
from icefloe.format.direct_writer import DirectWriter, TableLayout
from icefloe.format.envelope import FileType
from icefloe.model.chunk_index_columns import LazyChunkIndices
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.node import NodeKind
from icefloe.model.path import Path
from icefloe.model.transaction_log import NODE_SETS, MoveOperation, TransactionLog

if TYPE_CHECKING:
    from icefloe.format.direct_reader import DirectTable
    from icefloe.model.chunk_index_columns import ChunkIndexColumns

_T, _M, _U = schema.TransactionLog, schema.MoveOperation, schema.ArrayUpdatedChunks
_NODE_SET_FIELDS: dict[str, schema.Field] = {name: getattr(_T, name.upper()) for name in NODE_SETS}
_ROOT = TableLayout(_T.ID, *_NODE_SET_FIELDS.values(), _T.UPDATED_CHUNKS, _T.MOVED_NODES)
_MOVE = TableLayout(_M.NODE_ID, _M.NODE_TYPE, _M.FROM, _M.TO)
_UPDATED = TableLayout(_U.NODE_ID, _U.CHUNKS)
_INDICES = TableLayout(schema.ChunkIndices.COORDS)
_NODE_ID = Struct("8s")
_NO_NODES: frozenset[NodeId] = frozenset()


def read_transaction_log(body: bytes, file: str) -> TransactionLog:
    """Read a transaction log from a decompressed file, its chunk indices on access."""
    root = DirectBuffer(body, file).get_root("TransactionLog")
    return TransactionLog(
        id=SnapshotId(root.read_struct(_T.ID)),
        updated_chunks=_open_updated_chunks(root),
        moved_nodes=_read_moves(root),
        **{name: _read_node_set(root, field) for name, field in _NODE_SET_FIELDS.items()},
    )


def _read_node_set(root: DirectTable, field: schema.Field) -> frozenset[NodeId]:
    _, count = root.find_vector(field, NodeId.SIZE) or (0, 0)
    if not count:
        return _NO_NODES
    raw_ids = [raw for (raw,) in root.read_items(field, _NODE_ID)]
    if any(a >= b for a, b in pairwise(raw_ids)):
        root.buffer.fail(f"its {field.name} must be sorted by id, without duplicates")
    return frozenset(map(NodeId, raw_ids))


def _open_updated_chunks(root: DirectTable) -> ChunkIndexColumns:
    tables = root.get_tables(_T.UPDATED_CHUNKS, "ArrayUpdatedChunks")
    raw_ids = [table.read_struct(_U.NODE_ID) for table in tables]
    if any(a >= b for a, b in pairwise(raw_ids)):
        root.buffer.fail("its arrays with updated chunks must be sorted by id, without duplicates")
    return LazyChunkIndices(raw_ids, root.buffer.size, partial(_read_updated_chunks, root))


def _read_updated_chunks(root: DirectTable) -> ChunkIndexColumns:
    arrays = []
    for array in root.get_tables(_T.UPDATED_CHUNKS, "ArrayUpdatedChunks"):
        tables = array.get_tables(_U.CHUNKS, "ChunkIndices")
        rows = [read_index(table, schema.ChunkIndices.COORDS) for table in tables]
        # Icechunk orders the chunks of a split array by manifest, unlike the spec.
        arrays.append((array.read_struct(_U.NODE_ID), sorted(rows)))
    if any(a == b for _, rows in arrays for a, b in pairwise(rows)):
        root.buffer.fail("its updated chunks have duplicates")
    return build_index_columns(root.buffer, arrays, "ChunkIndices")


def _read_moves(root: DirectTable) -> tuple[MoveOperation, ...]:
    moves = root.get_tables(_T.MOVED_NODES, "MoveOperation", required=False)
    if not moves:
        return ()
    try:
        result = tuple(
            [
                MoveOperation(
                    Path(move.read_string(_M.FROM) or ""),
                    Path(move.read_string(_M.TO) or ""),
                    NodeId(move.read_struct(_M.NODE_ID)),
                    NodeKind(move.read_scalar(_M.NODE_TYPE)),
                )
                for move in moves
            ]
        )
    except (InvalidInputError, ValueError) as error:
        raise FormatError(f"invalid move: {error}", file=root.buffer.file) from error
    targets = [move.to_path.segments for move in result]
    if any(a >= b for a, b in pairwise(targets)):
        root.buffer.fail("its moves must be sorted by destination, without duplicates")
    return result


def write_transaction_log(log: TransactionLog, *, spec_version: int, level: int) -> bytes:
    """Encode a transaction log file; moves are sorted."""
    writer = DirectWriter()
    root = writer.add_table(_ROOT, log.id.raw, *[0] * (len(_ROOT.offsets) - 1))
    for name, field in _NODE_SET_FIELDS.items():
        raw_ids = sorted([node_id.raw for node_id in getattr(log, name)])
        vector = writer.add_items(len(raw_ids), b"".join(raw_ids))
        writer.point_field(root, _ROOT, field, vector)
    moves = sorted(log.moved_nodes, key=lambda move: move.to_path.segments)
    vector = writer.add_pointers(len(moves))
    writer.point_field(root, _ROOT, _T.MOVED_NODES, vector)
    tables = [writer.add_table(_MOVE, move.node_id.raw, move.node_kind, 0, 0) for move in moves]
    writer.point_items(vector, tables)
    for table, move in zip(tables, moves, strict=True):
        for field, path in ((_M.FROM, move.from_path), (_M.TO, move.to_path)):
            writer.point_field(table, _MOVE, field, writer.add_blob(path.value.encode()))
    _add_updated_chunks(writer, root, log.updated_chunks)
    return writer.pack(
        root, file_type=FileType.TRANSACTION_LOG, spec_version=spec_version, level=level
    )


def _add_updated_chunks(writer: DirectWriter, root: int, chunks: ChunkIndexColumns) -> None:
    arrays = list(iter_indices(chunks))
    vector = writer.add_pointers(len(arrays))
    writer.point_field(root, _ROOT, _T.UPDATED_CHUNKS, vector)
    tables = [writer.add_table(_UPDATED, raw_id, 0) for raw_id, _ in arrays]
    writer.point_items(vector, tables)
    for table, (_, rows) in zip(tables, arrays, strict=True):
        vector = writer.add_pointers(len(rows))
        writer.point_field(table, _UPDATED, _U.CHUNKS, vector)
        indices = [writer.add_table(_INDICES, 0) for _ in rows]
        writer.point_items(vector, indices)
        for index, coords in zip(indices, rows, strict=True):
            target = add_index(writer, coords)
            writer.point_field(index, _INDICES, schema.ChunkIndices.COORDS, target)
