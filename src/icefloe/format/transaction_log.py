"""Codec of transaction log files (Icechunk spec, "Transaction Logs")."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import direct_transaction_log, schema
from icefloe.format.chunk_indices import (
    build_index_tail,
    fill_coords,
    read_indices,
    sort_indices,
)
from icefloe.format.direct_writer import UNFIT
from icefloe.format.envelope import FileType, unpack
from icefloe.format.flatbuffer_reader import FlatBuffer, Tables
from icefloe.format.flatbuffer_writer import Layout, LazyRecords, Records
from icefloe.format.ids import to_id_rows, to_ids
from icefloe.format.size_choice import is_small, is_small_file
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.node import NodeKind
from icefloe.model.path import Path
from icefloe.model.strings import Strings
from icefloe.model.transaction_log import NODE_SETS, MoveOperation, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from icefloe.model.chunk_index_columns import ChunkIndexColumns

DEFAULT_LEVEL = 1
"""The default compression level, as for manifests."""

_MIN_INDEX_SIZE = 8  # the vtable offset and the pointer to the coordinates

_NODE_SET_FIELDS: dict[str, schema.Field] = {
    name: getattr(schema.TransactionLog, name.upper()) for name in NODE_SETS
}


def decode_transaction_log(data: bytes | memoryview, file: str) -> TransactionLog:
    """Decode a transaction log file of either spec version."""
    _, body = unpack(data, FileType.TRANSACTION_LOG, file)
    if is_small_file(body):
        return direct_transaction_log.read_transaction_log(body, file)
    return _read_columns(body, file)


def _read_columns(body: bytes, file: str) -> TransactionLog:
    root = FlatBuffer(body, file).get_root("TransactionLog")
    return TransactionLog(
        id=SnapshotId(root.read_structs(schema.TransactionLog.ID).tobytes()),
        updated_chunks=_read_updated_chunks(root),
        moved_nodes=_read_moves(root),
        **{name: _read_node_set(root, field) for name, field in _NODE_SET_FIELDS.items()},
    )


def _read_node_set(root: Tables, field: schema.Field) -> frozenset[NodeId]:
    _, rows = root.read_id_vectors(field, NodeId.SIZE)
    root.buffer.require_ascending(rows, field.name)
    return frozenset(to_ids(rows, NodeId))


def _read_updated_chunks(root: Tables) -> ChunkIndexColumns:
    table = schema.ArrayUpdatedChunks
    _, arrays = root.get_children(schema.TransactionLog.UPDATED_CHUNKS, "ArrayUpdatedChunks")
    node_ids = arrays.read_structs(table.NODE_ID)
    root.buffer.require_ascending(node_ids, "arrays with updated chunks")
    row_offsets, positions = arrays.find_children(table.CHUNKS, min_size=_MIN_INDEX_SIZE)
    columns = read_indices(
        root.buffer,
        node_ids,
        row_offsets,
        positions,
        name="ChunkIndices",
        field=schema.ChunkIndices.COORDS,
    )
    # Icechunk orders the chunks of a split array by manifest, unlike the spec.
    return sort_indices(root.buffer, columns, "updated chunks")


def _read_moves(root: Tables) -> tuple[MoveOperation, ...]:
    table = schema.MoveOperation
    _, moves = root.get_children(schema.TransactionLog.MOVED_NODES, "MoveOperation", required=False)
    ids = to_ids(moves.read_structs(table.NODE_ID), NodeId)
    try:
        result = tuple(
            MoveOperation(Path(source or ""), Path(target or ""), node_id, NodeKind(kind))
            for source, target, node_id, kind in zip(
                moves.read_texts(table.FROM),
                moves.read_texts(table.TO),
                ids,
                moves.read_scalars(table.NODE_TYPE).tolist(),
                strict=True,
            )
        )
    except (InvalidInputError, ValueError) as error:
        raise FormatError(f"invalid move: {error}", file=root.buffer.file) from error
    targets = [move.to_path.segments for move in result]
    if any(a >= b for a, b in pairwise(targets)):
        root.buffer.fail("its moves must be sorted by destination, without duplicates")
    return result


def encode_transaction_log(
    log: TransactionLog, *, spec_version: int, level: int = DEFAULT_LEVEL
) -> bytes:
    """Encode a transaction log file; moves are sorted."""
    if len({move.to_path for move in log.moved_nodes}) < len(log.moved_nodes):
        raise FormatError(
            f"transaction log {log.id} moves several nodes to one path",
            kind=ErrorKind.SERIALIZATION,
        )
    num_nodes = sum(map(len, log.node_sets))
    num_rows = num_nodes + len(log.moved_nodes) + len(log.updated_chunks)
    if is_small(num_rows):
        with suppress(*UNFIT):
            return direct_transaction_log.write_transaction_log(
                log, spec_version=spec_version, level=level
            )
    return _write_columns(log, spec_version=spec_version, level=level)


def _write_columns(log: TransactionLog, *, spec_version: int, level: int) -> bytes:
    layout = Layout(f"transaction log {log.id} with {len(log.updated_chunks)} updated chunks")
    table = schema.TransactionLog
    root = layout.add_records(
        1, [table.ID, *_NODE_SET_FIELDS.values(), table.UPDATED_CHUNKS, table.MOVED_NODES]
    )
    root.fill(table.ID, np.frombuffer(log.id.raw, np.uint8))
    for name, field in _NODE_SET_FIELDS.items():
        nodes: frozenset[NodeId] = getattr(log, name)
        rows = to_id_rows(sorted(nodes), NodeId)
        root.point(field, layout.add_id_vectors(np.array([len(nodes)]), rows))
    _write_moves(layout, root, sorted(log.moved_nodes, key=lambda move: move.to_path.segments))
    _write_updated_chunks(layout, root, log.updated_chunks)
    return layout.pack(
        root, file_type=FileType.TRANSACTION_LOG, spec_version=spec_version, level=level
    )


def _write_moves(layout: Layout, root: Records, moves: Sequence[MoveOperation]) -> None:
    table = schema.MoveOperation
    fields = [table.FROM, table.TO, table.NODE_ID, table.NODE_TYPE]
    position, records = layout.add_table_vectors([len(moves)], fields)
    root.point(schema.TransactionLog.MOVED_NODES, position)
    records.point(table.FROM, layout.add_blobs(Strings.of([str(move.from_path) for move in moves])))
    records.point(table.TO, layout.add_blobs(Strings.of([str(move.to_path) for move in moves])))
    records.fill(table.NODE_ID, to_id_rows([move.node_id for move in moves], NodeId))
    records.fill(table.NODE_TYPE, [move.node_kind for move in moves])


def _write_updated_chunks(layout: Layout, root: Records, chunks: ChunkIndexColumns) -> None:
    table = schema.ArrayUpdatedChunks
    fields = [table.NODE_ID, table.CHUNKS]
    position, arrays = layout.add_table_vectors([len(chunks.node_ids)], fields)
    root.point(schema.TransactionLog.UPDATED_CHUNKS, position)
    arrays.fill(table.NODE_ID, chunks.node_ids)
    record_template = Records([schema.ChunkIndices.COORDS], build_index_tail(chunks))
    chunk_size = record_template.stride + 4
    # Other parts of the file, such as the padding of vectors, take a few bytes for each array.
    num_fitting = layout.count_fitting(chunk_size) - len(chunks.node_ids) - 8
    layout.advice = f"commit in parts of at most {max(0, num_fitting):,} chunks"
    layout.require_room(len(chunks) * chunk_size)
    positions, pointers = layout.add_pointers(np.diff(chunks.row_offsets))
    arrays.point(table.CHUNKS, positions)
    pointers.set_targets(_write_indices(layout, record_template, chunks))


def _write_indices(
    layout: Layout, record_template: Records, chunks: ChunkIndexColumns
) -> NDArray[np.int64]:
    nbytes = len(chunks) * record_template.stride
    start = layout.reserve(nbytes, 8)
    starts = start + np.arange(len(chunks), dtype=np.int64) * record_template.stride

    def fill(block: Records, rows: slice) -> None:
        fill_coords(block, schema.ChunkIndices.COORDS, chunks, rows)

    layout.put(start, LazyRecords(record_template, starts, nbytes, fill))
    return record_template.locate_tables(starts)
