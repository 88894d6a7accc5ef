"""The column ``coord`` of inventories: chunk coordinates as binary (docs/format/draft.md).

The encodings of the coordinates are concatenated. A coordinate below 252 is one byte; a greater one
is a byte with the number of bytes that follow plus 251, then the number, big-endian, in as few
bytes as possible. So the encoding of a coordinate is never a prefix of another one, and bytes sort
like the tuples. The chunk of a scalar array has the empty ``coord``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.model.columns import to_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_DIMENSIONS: Final = 255
"""Limits the work on untrusted files; array libraries support at most 64 dimensions."""

SPARK_SQL_DECODER: Final = (
    "transform(regexp_extract_all(hex(coord), '(FF.{8}|FE.{6}|FD.{4}|FC.{2}|..)', 1), "
    "c -> cast(conv(substring(c, if(length(c) > 2, 3, 1)), 16, 10) AS bigint))"
)
"""Decodes ``coord`` to an array of integers in Spark SQL."""

DUCKDB_DECODER: Final = (
    "[('0x' || c[CASE WHEN length(c) > 2 THEN 3 ELSE 1 END:])::BIGINT "
    "FOR c IN regexp_extract_all(hex(coord), 'FF.{8}|FE.{6}|FD.{4}|FC.{2}|..')]"
)
"""Decodes ``coord`` to a list of integers in DuckDB."""

_FIRST_MARKER: Final = 252
_MARKER_BASE: Final = 251
_BLOCK_ROWS: Final = 1 << 15  # temporary arrays fit in the CPU cache
_MIN_RUN_ROWS: Final = 512
# The least number with each number of bytes after the marker; smaller ones are not canonical.
_LEAST: Final = (0, _FIRST_MARKER, 1 << 8, 1 << 16, 1 << 24)


class CoordError(ValueError):
    """A ``coord`` is not the encoding of coordinates; ``row`` is its row number."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"coord of row {row} {problem}")
        self.row = row


def encode_coord(coords: tuple[int, ...]) -> bytes:
    """Encode the coordinates of one chunk."""
    data, _ = encode_coords(np.array([coords], np.uint32).reshape(1, len(coords)))
    return data.tobytes()


def encode_coords(matrix: NDArray[np.uint32]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Encode one chunk per row; return the concatenated bytes and the offsets of the rows."""
    pieces, lengths = [], []
    for begin in range(0, len(matrix), _BLOCK_ROWS):
        block_data, block_lengths = _encode_block(matrix[begin : begin + _BLOCK_ROWS])
        pieces.append(block_data)
        lengths.append(block_lengths)
    data = np.concatenate([np.zeros(0, np.uint8), *pieces])
    return data, to_offsets(np.concatenate([np.zeros(0, np.int64), *lengths]))


def decode_coords(
    data: NDArray[np.uint8], offsets: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Decode rows; return the number of dimensions of each, and all coordinates, concatenated.

    Raises `CoordError` if bytes are not the encoding of coordinates.
    """
    num_rows = len(offsets) - 1
    if not num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.uint32)
    lengths = np.diff(offsets)
    # Adjacent rows mostly have the same length: such a run is a matrix of bytes.
    starts = np.concatenate([[0], np.flatnonzero(lengths[1:] != lengths[:-1]) + 1, [num_rows]])
    if len(starts) - 1 > num_rows // _MIN_RUN_ROWS + 1:
        starts = np.append(np.arange(0, num_rows, _BLOCK_ROWS), num_rows)
    ndims, pieces = [], []
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        run_ndims, run_coords = _decode_run(data, offsets[begin : end + 1], begin)
        ndims.append(run_ndims)
        pieces.append(run_coords)
    return np.concatenate(ndims), np.concatenate(pieces)


def _measure(column: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the number of bytes of each coordinate."""
    lengths = np.ones(len(column), np.uint8)
    for least in _LEAST[1:]:
        lengths += column >= least
    return lengths


def _encode_block(matrix: NDArray[np.uint32]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    num_rows, ndim = matrix.shape
    total = np.zeros(num_rows, np.int64)
    is_group = True
    for axis in range(ndim):
        column = matrix[:, axis]
        if column.max() < _FIRST_MARKER:
            total += 1
            continue
        lengths = _measure(column)
        total += lengths
        is_group = is_group and bool((lengths == lengths[0]).all())
    if is_group:
        return _encode_group(matrix, int(total[0])).reshape(-1), total
    return _encode_mixed(matrix, total), total


def _encode_mixed(matrix: NDArray[np.uint32], total: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encode rows of any lengths, one coordinate of all rows at a time."""
    data = np.empty(int(total.sum()), np.uint8)
    position = np.cumsum(total) - total
    for axis in range(matrix.shape[1]):
        column = matrix[:, axis]
        following = _measure(column).astype(np.int64) - 1
        data[position] = np.where(following, following + _MARKER_BASE, column)
        for num_bytes in range(1, len(_LEAST)):
            marked = np.flatnonzero(following == num_bytes)
            numbers, starts = column[marked], position[marked]
            for index in range(1, num_bytes + 1):
                shift = np.uint32(8 * (num_bytes - index))
                data[starts + index] = numbers >> shift & np.uint32(0xFF)
        position = position + 1 + following
    return data


def _encode_group(matrix: NDArray[np.uint32], width: int) -> NDArray[np.uint8]:
    """Encode rows whose coordinates have the same lengths."""
    out = np.empty((len(matrix), width), np.uint8)
    position = 0
    for axis in range(matrix.shape[1]):
        column = matrix[:, axis]
        num_bytes = int(_measure(column[:1])[0]) - 1
        if num_bytes:
            out[:, position] = _MARKER_BASE + num_bytes
            position += 1
        for shift in range(8 * max(0, num_bytes - 1), -1, -8):
            out[:, position] = column >> np.uint32(shift) & np.uint32(0xFF)
            position += 1
    return out


def _decode_run(
    data: NDArray[np.uint8], offsets: NDArray[np.integer], first_row: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    num_rows, width = len(offsets) - 1, int(offsets[1] - offsets[0])
    begin, end = int(offsets[0]), int(offsets[-1])
    if end - begin == num_rows * width and (np.diff(offsets) == width).all():
        matrix = _decode_group(data[begin:end].reshape(num_rows, width))
        if matrix is not None:
            return np.full(num_rows, matrix.shape[1], np.int64), matrix.reshape(-1)
    return _decode_mixed(data, offsets.astype(np.int64), first_row)


def _decode_group(rows: NDArray[np.uint8]) -> NDArray[np.uint32] | None:
    """Decode rows of one length; return None unless their coordinates have the same lengths."""
    num_rows, width = rows.shape
    columns: list[NDArray[np.uint32]] = []
    position = 0
    while position < width:
        first = rows[:, position]
        if first.max() < _FIRST_MARKER:
            columns.append(first.astype(np.uint32))
            position += 1
            continue
        marker = int(first[0])
        num_bytes = marker - _MARKER_BASE
        if num_bytes < 1 or position + num_bytes >= width or not (first == marker).all():
            return None
        value = np.zeros(num_rows, np.uint32)
        for index in range(position + 1, position + num_bytes + 1):
            value = value << np.uint32(8) | rows[:, index]
        if (value < _LEAST[num_bytes]).any():
            return None
        columns.append(value)
        position += num_bytes + 1
    if len(columns) > MAX_DIMENSIONS:
        return None
    return np.stack(columns, 1) if columns else np.zeros((num_rows, 0), np.uint32)


def _decode_mixed(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], first_row: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Decode rows of any length, one coordinate of all rows at a time."""
    num_rows = len(offsets) - 1
    ndims = np.zeros(num_rows, np.int64)
    axes: list[tuple[NDArray[np.int64], NDArray[np.uint32]]] = []
    rows, position, ends = np.arange(num_rows), offsets[:-1], offsets[1:]
    while True:
        has_more = position < ends
        if not has_more.all():
            rows, position, ends = rows[has_more], position[has_more], ends[has_more]
        if not len(rows):
            break
        if len(axes) == MAX_DIMENSIONS:
            raise CoordError(
                first_row + int(rows[0]), f"has more than {MAX_DIMENSIONS} coordinates"
            )
        value, position = _decode_axis(data, position, ends, first_row + rows)
        ndims[rows] += 1
        axes.append((rows, value))
    starts = np.cumsum(ndims) - ndims
    coords = np.empty(int(ndims.sum()), np.uint32)
    for axis, (axis_rows, value) in enumerate(axes):
        coords[starts[axis_rows] + axis] = value
    return ndims, coords


def _decode_axis(
    data: NDArray[np.uint8],
    position: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Decode one coordinate of each row; return it and the position of the next."""
    first = data[position]
    value = first.astype(np.uint32)
    following = np.maximum(first, _MARKER_BASE).astype(np.int64) - _MARKER_BASE
    next_position = position + 1 + following
    if (next_position > ends).any():
        raise CoordError(int(rows[np.argmax(next_position > ends)]), "is truncated")
    for num_bytes in range(1, len(_LEAST)):
        marked = np.flatnonzero(following == num_bytes)
        if not len(marked):
            continue
        number = np.zeros(len(marked), np.uint32)
        for index in range(1, num_bytes + 1):
            number = number << np.uint32(8) | data[position[marked] + index]
        if (number < _LEAST[num_bytes]).any():
            row = int(rows[marked[np.argmax(number < _LEAST[num_bytes])]])
            raise CoordError(row, "has a coordinate with more bytes than it needs")
        value[marked] = number
    return value, next_position
