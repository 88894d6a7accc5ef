"""Vectorized comparison of chunk references from several manifests.

String tables of different manifests are compared by value. Inline bytes are compared where they
are, in blocks: manifests may have many of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.columns import to_offsets
from icefloe.model.manifest import match_id_sizes, merge_codes
from icefloe.transaction.overlay import drop_unused_strings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.model.manifest import ChunkPayloads
    from icefloe.model.strings import Strings

# Temporary arrays have up to eight times this size.
_BLOCK_BYTES = 1 << 20


def find_different_rows(
    left: Sequence[ChunkPayloads],
    left_rows: NDArray[np.int64],
    right: Sequence[ChunkPayloads],
    right_rows: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Compare references in pairs; return a mask of the pairs that differ.

    Row numbers count the rows of all parts of a side, as if they were concatenated. Rows are equal
    if their kind, length, offset, chunk id, location, checksum and inline bytes are.
    """
    parts = match_id_sizes([*left, *right])
    ours, theirs = _Rows(parts[: len(left)], left_rows), _Rows(parts[len(left) :], right_rows)
    kind = ours.get("kind")
    is_different: NDArray[np.bool_] = kind != theirs.get("kind")
    is_different |= ours.get("length") != theirs.get("length")
    # The offset of an inline chunk is its place in a buffer.
    is_different |= (ours.get("offset") != theirs.get("offset")) & (kind != ChunkKind.INLINE)

    native = np.flatnonzero(~is_different & (kind == ChunkKind.NATIVE))
    if len(native):
        different_ids = ours.get("chunk_id", native) != theirs.get("chunk_id", native)
        is_different[native] = different_ids.any(axis=1)

    virtual = np.flatnonzero(~is_different & (kind == ChunkKind.VIRTUAL))
    if len(virtual):
        is_changed = ours.get("last_modified", virtual) != theirs.get("last_modified", virtual)
        for codes, table in (("location_codes", "locations"), ("etag_codes", "etags")):
            is_changed |= _compare_strings(ours, theirs, virtual, codes, table)
        is_different[virtual] = is_changed

    inline = np.flatnonzero(~is_different & (kind == ChunkKind.INLINE))
    if len(inline):
        is_different[inline] = _compare_inline(ours, theirs, inline)
    return is_different


class _Rows:
    """Rows of concatenated parts, which are not concatenated."""

    def __init__(self, parts: Sequence[ChunkPayloads], rows: NDArray[np.int64]) -> None:
        self.parts = parts
        self._rows = rows
        self._starts = to_offsets([len(part) for part in parts])

    def get(self, name: str, selection: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return a column, of a selection of the rows."""
        columns = [getattr(part, name) for part in self.parts]
        column = columns[0] if len(columns) == 1 else np.concatenate(columns)
        selected: NDArray[Any] = column[self._select(selection)]
        return selected

    def get_parts(self, selection: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the part that each selected row is in."""
        return np.searchsorted(self._starts, self._select(selection), side="right") - 1

    def split_codes(
        self, selection: NDArray[np.int64], codes: str, table: str
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], Strings]]:
        """Yield, for each part, which selected rows are in it, their codes and the strings."""
        rows = self._select(selection)
        for number, positions in _group(self.get_parts(selection)):
            part = self.parts[number]
            part_codes = getattr(part, codes)[rows[positions] - self._starts[number]]
            yield positions, *drop_unused_strings(part_codes, getattr(part, table))

    def _select(self, selection: NDArray[np.int64] | None) -> NDArray[np.int64]:
        return self._rows if selection is None else self._rows[selection]


def _group(numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each distinct number with the positions where it occurs."""
    order = np.argsort(numbers, kind="stable")
    bounds = np.flatnonzero(np.diff(numbers[order])) + 1
    for positions in np.split(order, bounds):
        yield int(numbers[positions[0]]), positions


def _compare_strings(
    ours: _Rows, theirs: _Rows, selection: NDArray[np.int64], codes: str, table: str
) -> NDArray[np.bool_]:
    """Compare the strings of pairs of rows, whatever their tables."""
    pieces = [list(side.split_codes(selection, codes, table)) for side in (ours, theirs)]
    merged, _ = merge_codes([(codes, table) for piece in pieces for _, codes, table in piece])
    # Both sides have all selected rows, ordered by part.
    decoded = np.empty((2, len(selection)), np.int32)
    for side, values in enumerate(np.split(merged, 2)):
        decoded[side, np.concatenate([positions for positions, *_ in pieces[side]])] = values
    return np.asarray(decoded[0] != decoded[1])


def _compare_inline(ours: _Rows, theirs: _Rows, selection: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Compare the bytes of pairs of inline chunks of equal length."""
    is_different = np.zeros(len(selection), bool)
    starts = [side.get("offset", selection).astype(np.int64) for side in (ours, theirs)]
    lengths = ours.get("length", selection).astype(np.int64)
    pairs = ours.get_parts(selection) * len(theirs.parts) + theirs.get_parts(selection)
    for pair, rows in _group(pairs):
        left, right = divmod(pair, len(theirs.parts))
        buffers = ours.parts[left].inline, theirs.parts[right].inline
        left_starts, right_starts = (side[rows] for side in starts)
        is_different[rows] = _compare_spans(*buffers, left_starts, right_starts, lengths[rows])
    return is_different


def _compare_spans(
    left: NDArray[np.uint8],
    right: NDArray[np.uint8],
    left_starts: NDArray[np.int64],
    right_starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Compare spans of two buffers in pairs; return a mask of the pairs that differ."""
    is_different = np.zeros(len(lengths), bool)
    is_long = lengths > _BLOCK_BYTES
    for row in np.flatnonzero(is_long).tolist():
        first, second, length = (
            int(column[row]) for column in (left_starts, right_starts, lengths)
        )
        is_different[row] = not np.array_equal(
            left[first : first + length], right[second : second + length]
        )
    short = np.flatnonzero(~is_long)
    blocks = np.cumsum(lengths[short]) // _BLOCK_BYTES
    for rows in np.split(short, np.flatnonzero(np.diff(blocks)) + 1):
        sizes = lengths[rows]
        ends = np.cumsum(sizes)
        differs = _gather(left, left_starts[rows], sizes) != _gather(
            right, right_starts[rows], sizes
        )
        changed = np.searchsorted(ends, np.flatnonzero(differs), side="right")
        is_different[rows[changed]] = True
    return is_different


def _gather(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Concatenate spans; adjacent spans are not copied."""
    ends = np.cumsum(sizes)
    if not len(ends):
        return data[:0]
    offsets = starts - (ends - sizes)
    if (offsets == offsets[0]).all():
        return data[int(starts[0]) : int(starts[0] + ends[-1])]
    gathered: NDArray[np.uint8] = data[np.arange(int(ends[-1])) + np.repeat(offsets, sizes)]
    return gathered
