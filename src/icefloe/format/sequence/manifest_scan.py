"""Reads chunk references from JSON as icefloe writes it, column by column.

A block of text is read on the assumption that it has that layout. The columns are then written
again and compared with the text, so that the result is right or the block is given up: JSON in
another layout, or damaged, needs a JSON parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.format.sequence.chunk_keys import scan_keys
from icefloe.format.sequence.json_document import ID_SIZE
from icefloe.format.sequence.manifest_text import RefRows, Spans, write_rows
from icefloe.model.chunk_payload import MAX_U32, ChunkKind
from icefloe.model.columns import to_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMMA, _QUOTE, _BACKSLASH = b',"\\'
_OPEN_LIST, _CLOSE_LIST, _CLOSE_OBJECT = b"[]}"
_KIND_CODES: Final = {
    ChunkKind.NATIVE: ord("R"),
    ChunkKind.VIRTUAL: ord("V"),
    ChunkKind.INLINE: ord("I"),
}
_LABEL_SIZE: Final = len(b',"length":')
_NUM_COMMAS: Final = 18  # of a native reference: 15 inside the id, and one after each member
_MAX_DECIMALS: Final = 20


def find_row_starts(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where rows start, except the first: at a quote after ``}},`` or ``]},``."""
    is_start = (text[1:-2] == _CLOSE_OBJECT) & (text[2:-1] == _COMMA) & (text[3:] == _QUOTE)
    starts = np.flatnonzero(is_start)
    before = text[starts]
    is_end = (before == _CLOSE_OBJECT) | (before == _CLOSE_LIST)
    return np.asarray(starts[is_end] + 3, np.int64)


def scan_rows(text: NDArray[np.uint8], starts: NDArray[np.int64]) -> RefRows | None:
    """Read the rows that start at each position; return None if they are not as expected.

    The first row starts at 0. Strings are returned as they are escaped in ``text``.
    """
    size = len(text)
    if (text < 0x20).any():
        return None
    # Room for reading past the end, also past the last string (`Spans`).
    padded = np.zeros(2 * size + 16, np.uint8)
    padded[:size] = text
    keys = scan_keys(padded, starts + 1)
    if keys is None:
        return None
    numbers, num_numbers, key_ends = keys
    codes = padded[key_ends + 4]  # after ":{"
    kind = np.zeros(len(starts), np.uint8)
    for chunk_kind, code in _KIND_CODES.items():
        kind[codes == code] = chunk_kind
    if not kind.all():
        return None
    ends = np.append(starts[1:], size)
    columns = _Columns(padded, starts, ends, kind)
    readers = {
        ChunkKind.NATIVE: columns.read_native,
        ChunkKind.VIRTUAL: columns.read_virtual,
        ChunkKind.INLINE: columns.read_inline,
    }
    for chunk_kind, read in readers.items():
        rows = np.flatnonzero(kind == chunk_kind)
        if len(rows) and not read(rows):
            return None
    result = columns.build(numbers, num_numbers)
    return result if write_rows(result) == text.tobytes() else None


class _Columns:
    def __init__(
        self,
        text: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        kind: NDArray[np.uint8],
    ) -> None:
        self._text, self._starts, self._ends, self._kind = text, starts, ends, kind
        self._offset = np.zeros(len(starts), np.uint64)
        self._length = np.zeros(len(starts), np.uint64)
        self._chunk_id: NDArray[np.uint8] | None = None
        self._locations: Spans | None = None
        self._etags: Spans | None = None
        self._last_modified: NDArray[np.uint32] | None = None
        self._inline: Spans | None = None

    def build(self, numbers: NDArray[np.uint32], num_numbers: NDArray[np.int64]) -> RefRows:
        return RefRows(
            self._kind,
            numbers,
            num_numbers,
            self._offset,
            self._length,
            self._chunk_id,
            self._locations,
            self._etags,
            self._last_modified,
            self._inline,
        )

    def read_native(self, rows: NDArray[np.int64]) -> bool:
        text, _, _ = self._extract(rows)
        found = np.flatnonzero(text == _COMMA)
        if len(found) != _NUM_COMMAS * len(rows):
            return False
        commas = found.reshape(len(rows), _NUM_COMMAS)
        values = _read_small_numbers(text)
        if self._chunk_id is None:
            self._chunk_id = np.zeros((len(self._starts), ID_SIZE), np.uint8)
        # The last byte of an id ends before "],", the others before a comma.
        ends = commas[:, :ID_SIZE] - np.array([1] * (ID_SIZE - 1) + [2])
        self._chunk_id[rows] = values[ends]
        lengths = _read_decimals(text, commas[:, 15] + _LABEL_SIZE, commas[:, 16])
        offsets = _read_decimals(text, commas[:, 16] + _LABEL_SIZE, commas[:, 17] - 2)
        if lengths is None or offsets is None:
            return False
        self._length[rows], self._offset[rows] = lengths, offsets
        return True

    def read_virtual(self, rows: NDArray[np.int64]) -> bool:
        text, starts, ends = self._extract(rows)
        quotes = _find_quotes(text)
        if quotes is None:
            return False
        first = np.searchsorted(quotes, starts)
        counts = np.diff(first, append=len(quotes))
        # Two for each of the key, "Virtual", "length", "location", its value and "offset"; then
        # two for "last_modified", or four for "etag" and its value.
        has_time, has_etag = counts == 14, counts == 16
        if not ((counts == 12) | has_time | has_etag).all():
            return False
        closing = ends - len(b"}},")
        following = np.append(quotes, 0)[first + 12] - 1
        offsets = _read_decimals(
            text, quotes[first + 11] + 2, np.where(counts == 12, closing, following)
        )
        lengths = _read_decimals(text, quotes[first + 5] + 2, quotes[first + 6] - 1)
        if lengths is None or offsets is None:
            return False
        self._length[rows], self._offset[rows] = lengths, offsets
        shifts = self._starts[rows] - starts
        self._locations = self._set_spans(
            rows, quotes[first + 8] + 1 + shifts, quotes[first + 9] - quotes[first + 8] - 1
        )
        if has_etag.any():
            tagged = first[has_etag]
            begins = quotes[tagged + 14] + 1
            self._etags = self._set_spans(
                rows[has_etag], begins + shifts[has_etag], quotes[tagged + 15] - begins
            )
        if has_time.any():
            times = _read_decimals(text, quotes[first[has_time] + 13] + 2, closing[has_time])
            if times is None or int(times.max()) > MAX_U32:
                return False
            self._last_modified = np.zeros(len(self._starts), np.uint32)
            self._last_modified[rows[has_time]] = times
        return True

    def read_inline(self, rows: NDArray[np.int64]) -> bool:
        text, starts, ends = self._extract(rows)
        is_marker = (text == _COMMA) | (text == _CLOSE_LIST)
        is_marker[ends - 1] = False  # the comma between rows
        markers = np.flatnonzero(is_marker)
        markers = markers[text[markers - 1] != _OPEN_LIST]  # of an empty list
        data = _read_small_numbers(text)[markers - 1]
        counts = np.diff(np.searchsorted(markers, np.append(starts, len(text))))
        offsets = to_offsets(counts)
        padded = np.zeros(len(data) + int(counts.max()), np.uint8)
        padded[: len(data)] = data
        spans = _make_absent(padded, len(self._starts))
        spans.starts[rows], spans.lengths[rows] = offsets[:-1], counts
        self._inline = spans
        self._offset[rows], self._length[rows] = offsets[:-1], counts
        return True

    def _extract(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Return the text of some rows, and where they start and end in it."""
        size = int(self._ends[-1])
        if len(rows) == len(self._starts):
            return self._text[:size], self._starts, self._ends
        is_selected = np.zeros(len(self._starts), bool)
        is_selected[rows] = True
        lengths = self._ends - self._starts
        bounds = to_offsets(lengths[rows])
        return self._text[:size][np.repeat(is_selected, lengths)], bounds[:-1], bounds[1:]

    def _set_spans(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Spans:
        spans = _make_absent(self._text, len(self._starts))
        spans.starts[rows], spans.lengths[rows] = starts, lengths
        return spans


def _make_absent(data: NDArray[np.uint8], num_rows: int) -> Spans:
    return Spans(data, np.zeros(num_rows, np.int64), np.full(num_rows, -1, np.int64))


def _find_quotes(text: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Return the quotes that are not escaped, or None if backslashes are escaped."""
    quotes = np.flatnonzero(text == _QUOTE)
    is_backslash = text == _BACKSLASH
    if is_backslash.any():
        if (is_backslash[1:] & is_backslash[:-1]).any():
            return None
        quotes = quotes[~is_backslash[quotes - 1] | (quotes == 0)]
    return quotes


def _read_small_numbers(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the number of at most three digits that ends at each byte, modulo 256."""
    values = text - np.uint8(ord("0"))
    is_digit = values < 10
    values *= is_digit
    result = values.copy()
    result[1:] += values[:-1] * np.uint8(10)
    result[2:] += values[:-2] * is_digit[1:-1] * np.uint8(100)
    return result


def _read_decimals(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint64] | None:
    """Read numbers modulo 2**64, or return None if one has no digits or too many."""
    lengths = ends - starts
    shortest, longest = int(lengths.min()), int(lengths.max())
    if (
        shortest < 1
        or longest > _MAX_DECIMALS
        or int(starts.min()) < 0
        or int(ends.max()) > len(text)
    ):
        return None
    values = np.zeros(len(starts), np.uint64)
    is_inside = int(starts.max()) + longest <= len(text)
    for place in range(longest):
        positions = starts + place
        if not is_inside:  # what follows a shorter number is ignored
            positions = np.minimum(positions, len(text) - 1)
        digits = text[positions] - np.uint8(ord("0"))
        longer = values * np.uint64(10) + digits
        values = longer if place < shortest else np.where(place < lengths, longer, values)
    return values
