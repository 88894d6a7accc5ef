"""Writes chunk references of manifests as JSON, column by column.

The text of a block of rows is a matrix: literals, and columns of numbers and strings padded with
NUL bytes. Deleting the NUL bytes gives the JSON, which has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.format.sequence.chunk_keys import format_numbers
from icefloe.model.chunk_payload import ChunkKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_ROWS: Final = 1 << 15
_MAX_MATRIX_BYTES: Final = 16 << 20
_GROUP: Final = np.uint64(10_000)


def _view_words(items: list[bytes]) -> NDArray[np.uint32]:
    """Return strings of at most four bytes as padded integers."""
    return np.frombuffer(b"".join(item.ljust(4, b"\0") for item in items), np.uint32)


_BYTE: Final = _view_words([b"%d" % value for value in range(256)])
_BYTE_COMMA: Final = _view_words([b"%d," % value for value in range(256)])
_COMMA_BYTE: Final = _view_words([b",%d" % value for value in range(256)])
# Four decimal digits: inside a number, at its start, and alone.
_INNER_DIGITS: Final = _view_words([b"%04d" % value for value in range(10_000)])
_FIRST_DIGITS: Final = _view_words([b"", *(b"%d" % value for value in range(1, 10_000))])
_ONLY_DIGITS: Final = _view_words([b"%d" % value for value in range(10_000)])


@dataclass(frozen=True, slots=True)
class Spans:
    """Byte strings ``data[start:start + length]``, one for each row; a length of -1 is absent.

    ``data`` must have as many bytes after the last string as the longest string has.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def select(self, rows: slice | NDArray[np.int64]) -> Spans:
        """Return some rows."""
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    @property
    def width(self) -> int:
        """The length of the longest string."""
        return int(self.lengths.max(initial=0))

    def to_matrix(self) -> NDArray[np.uint8]:
        """Return the strings as rows padded with NUL bytes."""
        width = self.width
        if width <= 0:
            return np.zeros((len(self.starts), 0), np.uint8)
        windows = np.ndarray(
            (len(self.data) - width + 1,), np.dtype(f"V{width}"), self.data, strides=(1,)
        )
        rows = windows[self.starts].view(np.uint8).reshape(len(self.starts), width)
        if int(self.lengths.min()) < width:
            rows *= np.arange(width) < self.lengths[:, np.newaxis]
        return rows


@dataclass(frozen=True, slots=True)
class RefRows:
    """The columns of references that are written.

    ``numbers`` are those of the key: node and coordinates, of which ``num_numbers`` are present.
    ``locations`` and ``etags`` are escaped as in JSON. ``inline`` are the bytes of inline chunks.
    Columns are None if no row has them.
    """

    kind: NDArray[np.uint8]
    numbers: NDArray[np.uint32]
    num_numbers: NDArray[np.int64]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    chunk_id: NDArray[np.uint8] | None = None
    locations: Spans | None = None
    etags: Spans | None = None
    last_modified: NDArray[np.uint32] | None = None
    inline: Spans | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def select(self, rows: slice | NDArray[np.int64]) -> RefRows:
        """Return some rows."""
        return RefRows(
            self.kind[rows],
            self.numbers[rows],
            self.num_numbers[rows],
            self.offset[rows],
            self.length[rows],
            None if self.chunk_id is None else self.chunk_id[rows],
            None if self.locations is None else self.locations.select(rows),
            None if self.etags is None else self.etags.select(rows),
            None if self.last_modified is None else self.last_modified[rows],
            None if self.inline is None else self.inline.select(rows),
        )


def write_rows(rows: RefRows) -> bytes:
    """Write references as members of a JSON object, each followed by a comma."""
    width = 4 * rows.numbers.shape[1] + 256
    for strings, factor in ((rows.locations, 1), (rows.etags, 1), (rows.inline, 4)):
        width += 0 if strings is None else strings.width * factor
    if len(rows) > 1 and width * len(rows) > _MAX_MATRIX_BYTES:
        # One long string must not widen many rows.
        half = len(rows) // 2
        return write_rows(rows.select(slice(half))) + write_rows(rows.select(slice(half, None)))
    kinds = [kind for kind in ChunkKind if (rows.kind == kind).any()]
    if len(kinds) == 1:
        matrix = _WRITERS[kinds[0]](rows)
    else:
        parts = []
        for kind in kinds:
            selected = np.flatnonzero(rows.kind == kind)
            parts.append((selected, _WRITERS[kind](rows.select(selected))))
        matrix = np.zeros(
            (len(rows), max([part.shape[1] for _, part in parts], default=0)), np.uint8
        )
        for selected, part in parts:
            matrix[selected, : part.shape[1]] = part
    return matrix.tobytes().translate(None, b"\0")


def _write_native(rows: RefRows) -> NDArray[np.uint8]:
    if rows.chunk_id is None:
        raise AssertionError("native chunks have ids")
    ids = np.empty((len(rows), rows.chunk_id.shape[1]), np.uint32)
    np.take(_BYTE_COMMA, rows.chunk_id[:, :-1], out=ids[:, :-1])
    ids[:, -1] = _BYTE[rows.chunk_id[:, -1]]
    return _join(
        len(rows),
        *_write_key(rows),
        b':{"Ref":{"id":[',
        ids.view(np.uint8),
        b'],"length":',
        format_decimals(rows.length),
        b',"offset":',
        format_decimals(rows.offset),
        b"}},",
    )


def _write_virtual(rows: RefRows) -> NDArray[np.uint8]:
    if rows.locations is None:
        raise AssertionError("virtual chunks have locations")
    parts: list[bytes | NDArray[np.uint8]] = []
    if rows.etags is not None and (has_etag := rows.etags.lengths >= 0).any():
        etags = _join(len(rows), b',"etag":"', rows.etags.to_matrix(), b'"')
        parts.append(etags * has_etag[:, np.newaxis])
    if rows.last_modified is not None and (has_time := rows.last_modified > 0).any():
        times = _join(len(rows), b',"last_modified":', format_decimals(rows.last_modified))
        parts.append(times if has_time.all() else times * has_time[:, np.newaxis])
    return _join(
        len(rows),
        *_write_key(rows),
        b':{"Virtual":{"length":',
        format_decimals(rows.length),
        b',"location":"',
        rows.locations.to_matrix(),
        b'","offset":',
        format_decimals(rows.offset),
        *parts,
        b"}},",
    )


def _write_inline(rows: RefRows) -> NDArray[np.uint8]:
    if rows.inline is None:
        raise AssertionError("inline chunks have bytes")
    data, lengths = rows.inline.to_matrix(), rows.inline.lengths[:, np.newaxis]
    words = np.empty(data.shape, np.uint32)
    if data.shape[1]:
        words[:, 0] = _BYTE[data[:, 0]]
        words[:, 1:] = _COMMA_BYTE[data[:, 1:]]
        words *= np.arange(data.shape[1]) < lengths
    return _join(len(rows), *_write_key(rows), b':{"Inline":[', words.view(np.uint8), b"]},")


_WRITERS: Final = {
    ChunkKind.NATIVE: _write_native,
    ChunkKind.VIRTUAL: _write_virtual,
    ChunkKind.INLINE: _write_inline,
}


def _write_key(rows: RefRows) -> list[bytes | NDArray[np.uint8]]:
    is_uniform = bool((rows.num_numbers == rows.numbers.shape[1]).all())
    parts: list[bytes | NDArray[np.uint8]] = [b'"']
    for place in range(rows.numbers.shape[1]):
        part = format_numbers(rows.numbers[:, place])
        parts.append(part if is_uniform else part * (place < rows.num_numbers)[:, np.newaxis])
    return [*parts, b'"']


def format_decimals(values: NDArray[np.unsignedinteger]) -> NDArray[np.uint8]:
    """Format a column of numbers; return a padded row of bytes for each."""
    largest = int(values.max(initial=0))
    if largest < _GROUP:
        return np.asarray(_ONLY_DIGITS[values]).reshape(-1, 1).view(np.uint8)
    num_groups = -(-len(str(largest)) // 4)
    words = np.empty((len(values), num_groups), np.uint32)
    rest = values.astype(np.uint64)
    for place in range(num_groups - 1, -1, -1):
        higher = rest // _GROUP
        group = (rest - higher * _GROUP).astype(np.int64)
        first = _ONLY_DIGITS if place == num_groups - 1 else _FIRST_DIGITS
        words[:, place] = np.where(higher > 0, _INNER_DIGITS[group], first[group])
        rest = higher
    return words.view(np.uint8)


def _join(num_rows: int, *parts: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Join columns of bytes; a literal is the same in each row."""
    widths = [len(part) if isinstance(part, bytes) else part.shape[1] for part in parts]
    matrix = np.empty((num_rows, sum(widths)), np.uint8)
    position = 0
    for part, width in zip(parts, widths, strict=True):
        literal = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        matrix[:, position : position + width] = literal
        position += width
    return matrix
