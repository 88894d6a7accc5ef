"""Columnar codec of the chunk indices in manifests and transaction logs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.flatbuffer_reader import FlatBuffer, Tables
from icefloe.model.chunk_index_columns import ChunkIndexColumns, is_row_less
from icefloe.model.columns import sort_distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.format.flatbuffer_writer import Records
    from icefloe.format.schema import Field

BLOCK_ROWS = 1 << 15
"""Rows per block, so that temporary arrays fit in the CPU cache."""

MAX_DIMENSIONS = 255
"""Limits the work on untrusted files; array libraries support at most 64 dimensions."""

TAIL_COUNT, TAIL_COORDS = "(index count)", "(index coords)"
"""Tail columns: each record is followed by its chunk index, a vector of a count and coordinates."""


class IndexReader:
    """Reads the chunk indices of arrays, block by block.

    ``positions`` are the tables with the chunk indices, and ``name`` is their type, for errors.
    Array ``i`` has the tables ``row_offsets[i]:row_offsets[i + 1]``.
    """

    def __init__(
        self,
        buffer: FlatBuffer,
        positions: NDArray[np.int64],
        row_offsets: NDArray[np.int64],
        name: str,
        field: Field,
    ) -> None:
        self._field = field
        row_counts = np.diff(row_offsets)
        # The first row of each array gives its number of dimensions, which limits the allocation;
        # the other rows must have the same number.
        self.ndims = np.zeros(len(row_counts), np.int64)
        first_rows = Tables(buffer, positions[row_offsets[:-1][row_counts > 0]], name)
        self.ndims[row_counts > 0] = first_rows.find_vectors(field, 4).count
        max_ndim = int(self.ndims.max(initial=0))
        if max_ndim > MAX_DIMENSIONS:
            buffer.fail(f"{name}: {max_ndim} dimensions exceed the limit of {MAX_DIMENSIONS}")
        total = int((row_counts * self.ndims).sum())
        if total * 4 > buffer.size:
            buffer.fail(f"{name}: {total} coordinates do not fit into {buffer.size} bytes")
        self.coords = np.empty(total, np.uint32)
        self._num_coords_read = 0
        ndims = self.ndims[row_counts > 0]
        # None if arrays differ in rank.
        self._common_ndim = int(ndims[0]) if len(ndims) and (ndims == ndims[0]).all() else None
        self._row_ndims = np.repeat(self.ndims, row_counts) if self._common_ndim is None else None

    def read_block(self, block: Tables) -> None:
        """Read the coordinates of the next block."""
        spans = block.find_vectors(self._field, 4)
        begin, end = block.first_row, block.first_row + len(block)
        expected = self._common_ndim if self._row_ndims is None else self._row_ndims[begin:end]
        if not (spans.count == expected).all():
            row = begin + int(np.argmax(spans.count != expected))
            block.buffer.fail(
                f"{block.name} {row} has another number of dimensions than the first row of its "
                "array"
            )
        if self._common_ndim is None:
            _, values = block.read_numbers(spans, "<u4")
            self.coords[self._num_coords_read : self._num_coords_read + len(values)] = values
            self._num_coords_read += len(values)
            return
        ndim = self._common_ndim
        out = self.coords[begin * ndim : end * ndim]
        for axis in range(ndim):
            out[axis::ndim] = block.buffer.gather(spans.start + 4 * axis, np.dtype("<u4"))


def read_indices(
    buffer: FlatBuffer,
    node_ids: NDArray[np.uint8],
    row_offsets: NDArray[np.int64],
    positions: NDArray[np.int64],
    *,
    name: str,
    field: Field,
) -> ChunkIndexColumns:
    """Read the chunk indices of arrays, without other fields; see `IndexReader`."""
    reader = IndexReader(buffer, positions, row_offsets, name, field)
    for begin in range(0, len(positions), BLOCK_ROWS):
        block = positions[begin : begin + BLOCK_ROWS]
        reader.read_block(Tables(buffer, block, name, first_row=begin))
    return ChunkIndexColumns(node_ids, row_offsets, reader.ndims, reader.coords)


def require_sorted(buffer: FlatBuffer, indices: ChunkIndexColumns, label: str) -> None:
    """Raise if the chunk indices of an array are not sorted and distinct."""
    if not are_indices_sorted(indices):
        buffer.fail(f"its {label} must be sorted by chunk index, without duplicates")


def find_repeated_rows(indices: ChunkIndexColumns) -> NDArray[np.int64]:
    """Return the rows with the same array and chunk index as the previous row."""
    starts, row_counts = indices.coord_starts, np.diff(indices.row_offsets).tolist()
    repeated = [np.zeros(0, np.int64)]
    for position, first in enumerate(indices.row_offsets[:-1].tolist()):
        flat = indices.coords[starts[position] : starts[position + 1]]
        matrix = flat.reshape(row_counts[position], int(indices.ndims[position]))
        repeated.append(np.flatnonzero((matrix[1:] == matrix[:-1]).all(axis=1)) + first + 1)
    return np.concatenate(repeated)


def drop_rows(indices: ChunkIndexColumns, rows: NDArray[np.int64]) -> ChunkIndexColumns:
    """Return the chunk indices without ``rows``."""
    is_kept = np.ones(len(indices), bool)
    is_kept[rows] = False
    ndims = np.repeat(indices.ndims, np.diff(indices.row_offsets))
    row_offsets = np.append(0, np.cumsum(is_kept))[indices.row_offsets]
    return replace(
        indices, row_offsets=row_offsets, coords=indices.coords[np.repeat(is_kept, ndims)]
    )


def sort_indices(buffer: FlatBuffer, indices: ChunkIndexColumns, label: str) -> ChunkIndexColumns:
    """Sort the chunk indices of each array; raise if there are duplicates."""
    if are_indices_sorted(indices):
        return indices
    row_counts, coords = np.diff(indices.row_offsets), indices.coords.copy()
    array_of_row = np.repeat(np.arange(len(row_counts)), row_counts)
    for ndim in sort_distinct(indices.ndims[indices.ndims > 0]):
        # All arrays of one rank at once: there may be thousands of small arrays.
        is_array_of_rank = indices.ndims == ndim
        is_coord_of_rank = np.repeat(is_array_of_rank, row_counts * indices.ndims)
        matrix = coords[is_coord_of_rank].reshape(-1, int(ndim))
        keys = (*(matrix[:, axis] for axis in range(int(ndim) - 1, -1, -1)),)
        order = np.lexsort((*keys, array_of_row[np.repeat(is_array_of_rank, row_counts)]))
        coords[is_coord_of_rank] = matrix[order].reshape(-1)
    indices = replace(indices, coords=coords)
    if not are_indices_sorted(indices):
        buffer.fail(f"its {label} have duplicates")
    return indices


def are_indices_sorted(indices: ChunkIndexColumns) -> bool:
    """Whether the chunk indices of each array are sorted and distinct."""
    # All arrays of one rank at once: there may be thousands of small arrays.
    starts = indices.coord_starts
    row_counts = np.diff(indices.row_offsets)
    for ndim in sort_distinct(indices.ndims[row_counts > 0]):
        arrays = np.flatnonzero((indices.ndims == ndim) & (row_counts > 0))
        if int(row_counts[arrays].sum()) == len(indices):
            flat = indices.coords
        else:
            pieces = [indices.coords[starts[array] : starts[array + 1]] for array in arrays]
            flat = np.concatenate(pieces)
        ends = np.cumsum(row_counts[arrays])
        if not _are_rows_ascending(flat.reshape(int(ends[-1]), int(ndim)), ends):
            return False
    return True


def _are_rows_ascending(matrix: NDArray[np.uint32], ends: NDArray[np.int64]) -> bool:
    for begin in range(0, len(matrix) - 1, BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, len(matrix) - 1)
        result = is_row_less(matrix[begin:end], matrix[begin + 1 : end + 1])
        in_block = slice(*np.searchsorted(ends, (begin + 1, end + 1)))
        # The last row of an array is not compared with the first row of the next.
        result[ends[in_block] - 1 - begin] = True
        if not result.all():
            return False
    return True


def build_index_tail(indices: ChunkIndexColumns) -> list[tuple[str, str, int]]:
    """Return the tail columns that hold the chunk index of a record: name, dtype, length."""
    max_ndim = int(indices.ndims.max(initial=0))
    if max_ndim > MAX_DIMENSIONS:
        raise FormatError(
            f"{max_ndim} dimensions exceed the limit of {MAX_DIMENSIONS}",
            kind=ErrorKind.SERIALIZATION,
        )
    return [(TAIL_COUNT, "<u4", 1), (TAIL_COORDS, "<u4", max_ndim)]


def fill_coords(block: Records, field: Field, indices: ChunkIndexColumns, rows: slice) -> None:
    """Write the chunk indices of rows to the tails of their records, and point a field to them."""
    block.point(field, block.locate_tail(TAIL_COUNT))
    counts, matrix = block.array[TAIL_COUNT], block.array[TAIL_COORDS]
    arrays = slice(
        int(np.searchsorted(indices.row_offsets, rows.start, "right")) - 1,
        int(np.searchsorted(indices.row_offsets, rows.stop, "left")),
    )
    bounds = indices.row_offsets[arrays.start : arrays.stop + 1].clip(rows.start, rows.stop)
    ndims = np.repeat(indices.ndims[arrays], np.diff(bounds))
    counts[:, 0] = ndims
    skipped = int(rows.start - indices.row_offsets[arrays.start]) * int(indices.ndims[arrays.start])
    first = int(indices.coord_starts[arrays.start]) + skipped
    flat = indices.coords[first : first + int(ndims.sum())]
    if (ndims == matrix.shape[1]).all():
        matrix[:] = flat.reshape(matrix.shape)
        return
    axis = np.arange(len(flat)) - np.repeat(np.cumsum(ndims) - ndims, ndims)
    matrix[np.repeat(np.arange(len(ndims)), ndims), axis] = flat
