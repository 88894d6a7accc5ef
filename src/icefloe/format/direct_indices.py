"""Row-wise codec of chunk indices, for few chunks; see `icefloe.format.chunk_indices`."""

from __future__ import annotations

import struct
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from icefloe.format.chunk_indices import MAX_DIMENSIONS
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.columns import to_offsets
from icefloe.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.format.direct_reader import DirectBuffer, DirectTable
    from icefloe.format.direct_writer import DirectWriter
    from icefloe.format.schema import Field

    Index = tuple[int, ...]

_COORDS = [Struct(f"<{ndim}I") for ndim in range(9)]


def read_index(table: DirectTable, field: Field) -> Index:
    """Read the index of a chunk."""
    start, ndim = table.find_vector(field, 4) or (0, 0)
    if ndim > MAX_DIMENSIONS:
        table.fail(f"has {ndim} dimensions, more than the limit of {MAX_DIMENSIONS}")
    coords = _COORDS[ndim] if ndim < len(_COORDS) else Struct(f"<{ndim}I")
    return coords.unpack_from(table.data, start)


def build_index_columns(
    buffer: DirectBuffer, arrays: Sequence[tuple[bytes, Sequence[Index]]], name: str
) -> ChunkIndexColumns:
    """Build columns from the node id and the indices of each array, both sorted.

    ``name`` is the type of the tables with the indices, for errors.
    """
    ndims = [len(rows[0]) if rows else 0 for _, rows in arrays]
    for (_, rows), ndim in zip(arrays, ndims, strict=True):
        for row, index in enumerate(rows):
            if len(index) != ndim:
                buffer.fail(
                    f"{name} {row} has another number of dimensions than the first row of its array"
                )
    node_ids = b"".join([raw_id for raw_id, _ in arrays])
    coords = [coord for _, rows in arrays for index in rows for coord in index]
    return ChunkIndexColumns(
        np.frombuffer(node_ids, np.uint8).reshape(-1, NodeId.SIZE),
        to_offsets([len(rows) for _, rows in arrays]),
        np.array(ndims, np.int64),
        np.array(coords, np.uint32),
    )


def iter_indices(columns: ChunkIndexColumns) -> Iterator[tuple[bytes, list[Index]]]:
    """Yield the node id and the indices of each array."""
    node_ids, coords = columns.node_ids.tobytes(), columns.coords.tolist()
    row_offsets, ndims = columns.row_offsets.tolist(), columns.ndims.tolist()
    start = 0
    for position, ndim in enumerate(ndims):
        num_rows = row_offsets[position + 1] - row_offsets[position]
        rows = [tuple(coords[start + row * ndim :][:ndim]) for row in range(num_rows)]
        start += num_rows * ndim
        yield node_ids[position * NodeId.SIZE :][: NodeId.SIZE], rows


def add_index(writer: DirectWriter, index: Index) -> int:
    """Add the index of a chunk; return its position."""
    if len(index) > MAX_DIMENSIONS:
        raise struct.error(f"{len(index)} dimensions exceed the limit of {MAX_DIMENSIONS}")
    return writer.add_items(len(index), Struct(f"<{len(index)}I").pack(*index))
