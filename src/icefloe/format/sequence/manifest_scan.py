"""Reads chunk references from JSON as icefloe writes it, column by column.

A block of text is read on the assumption that it has that layout, and each byte is checked: it
belongs to a literal at the expected place, to a number without leading zeros, or to a string. So
the result is what the JSON means, or the block is given up: JSON in another layout, or damaged,
needs a JSON parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.format.sequence.chunk_keys import scan_keys
from icefloe.format.sequence.json_document import ID_SIZE
from icefloe.format.sequence.manifest_text import RefRows, Spans
from icefloe.model.chunk_payload import MAX_U32, ChunkKind
from icefloe.model.columns import to_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMMA, _QUOTE, _BACKSLASH = b',"\\'
_CLOSE_LIST, _CLOSE_OBJECT = b"]}"
_REF: Final = b'":{"Ref":{"id":['
_VIRTUAL: Final = b'":{"Virtual":{"length":'
_INLINE: Final = b'":{"Inline":['
_LENGTH: Final = b'],"length":'
_OFFSET: Final = b',"offset":'
_LOCATION: Final = b',"location":"'
_LOCATION_END: Final = b'","offset":'
_ETAG: Final = b',"etag":"'
_LAST_MODIFIED: Final = b',"last_modified":'
_REF_END: Final = b'}},"'  # with the start of the next row
_INLINE_END: Final = b']},"'
_KIND_CODES: Final = {
    ChunkKind.NATIVE: ord("R"),
    ChunkKind.VIRTUAL: ord("V"),
    ChunkKind.INLINE: ord("I"),
}
# What follows the text: the start of a row, and room for comparing literals at any place.
_PADDING: Final = np.frombuffer(b'"'.ljust(32, b"\0"), np.uint8)
_MAX_DECIMALS: Final = 20
# The smallest number of each number of digits.
_SMALLEST: Final = np.array([0, 0, *(10**n for n in range(1, _MAX_DECIMALS))], np.uint64)
# The last bytes of a word in memory, by their number.
_LAST_BYTES: Final = np.array([2**64 - 2 ** (64 - 8 * n) for n in range(9)], np.uint64)


def find_row_starts(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where rows start, except the first: at a quote after ``}},`` or ``]},``."""
    candidates = np.flatnonzero((text[1:-2] == _CLOSE_OBJECT) & (text[2:-1] == _COMMA))
    words = _view_windows(text, np.dtype(np.uint32))[candidates]
    is_end = np.isin(words, np.frombuffer(_REF_END + _INLINE_END, np.uint32))
    return np.asarray(candidates[is_end] + 3, np.int64)


def scan_rows(text: NDArray[np.uint8], starts: NDArray[np.int64]) -> RefRows | None:
    """Read the rows that start at each position; return None if they are not as expected.

    The first row starts at 0. Strings are returned as they are escaped in ``text``: that they have
    no control characters is checked, other escapes and UTF-8 are not.
    """
    padded = np.append(text, _PADDING)
    keys = scan_keys(padded, starts + 1)
    if text[0] != _QUOTE or keys is None:
        return None
    numbers, num_numbers, key_ends = keys
    codes = padded[key_ends + 4]  # after ":{"
    kind = np.zeros(len(starts), np.uint8)
    for chunk_kind, code in _KIND_CODES.items():
        kind[codes == code] = chunk_kind
    if not kind.all():
        return None
    columns = _Columns(padded, starts, np.append(starts[1:], len(text)), key_ends, kind)
    readers = {
        ChunkKind.NATIVE: columns.read_native,
        ChunkKind.VIRTUAL: columns.read_virtual,
        ChunkKind.INLINE: columns.read_inline,
    }
    for chunk_kind, read in readers.items():
        rows = np.flatnonzero(kind == chunk_kind)
        if len(rows) and not read(rows):
            return None
    return columns.build(numbers, num_numbers)


class _Columns:
    def __init__(
        self,
        text: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        key_ends: NDArray[np.int64],
        kind: NDArray[np.uint8],
    ) -> None:
        self._text, self._starts, self._ends, self._kind = text, starts, ends, kind
        self._key_ends = key_ends
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
        text, key_ends, ends, _ = self._extract(rows)
        # In each row the bytes of the id and the length: the offset ends with "}".
        found, values = _find_small_numbers(text, num_lists=len(rows))
        if len(found) != (ID_SIZE + 1) * len(rows):
            return False
        before = np.append(0, found)[:-1]
        before[:: ID_SIZE + 1] = key_ends + (len(_REF) - 1)
        is_canonical = _has_all_digits(values, found - before)
        is_canonical[ID_SIZE :: ID_SIZE + 1] = True  # lengths are read below
        id_ends = found[ID_SIZE - 1 :: ID_SIZE + 1].copy()
        length_ends = found[ID_SIZE :: ID_SIZE + 1].copy()
        ends = ends - (len(_REF_END) - 1)
        if not (
            is_canonical.all()
            and _has_literal(text, key_ends, _REF)
            and _has_literal(text, id_ends, _LENGTH)
            and _has_literal(text, length_ends, _OFFSET)
            and _has_literal(text, ends, _REF_END)
        ):
            return False
        self._chunk_id = np.zeros((len(self._starts), ID_SIZE), np.uint8)
        is_all = len(rows) == len(self._starts)
        self._chunk_id[slice(None) if is_all else rows] = values.reshape(len(rows), -1)[:, :-1]
        return self._read_range(
            rows,
            _read_decimals(text, id_ends + len(_LENGTH), length_ends),
            _read_decimals(text, length_ends + len(_OFFSET), ends),
        )

    def read_virtual(self, rows: NDArray[np.int64]) -> bool:
        text, key_ends, ends, shifts = self._extract(rows)
        quotes = _find_quotes(text[: -len(_PADDING)])
        if quotes is None:
            return False
        first = np.searchsorted(quotes, key_ends)
        counts = np.diff(first, append=len(quotes) + 1)
        # From the end of a key to the start of the next: two for each of "Virtual", "length",
        # "location", its value and "offset"; two for "last_modified", or four for "etag" and its
        # value.
        has_time, has_etag = counts == 14, counts == 16
        if not ((counts == 12) | has_time | has_etag).all():
            return False
        length_ends, location_ends = quotes[first + 5] - 1, quotes[first + 8]
        ends = ends - (len(_REF_END) - 1)
        offset_ends = ends
        if has_time.any() or has_etag.any():
            offset_ends = np.where(counts == 12, ends, np.append(quotes, 0)[first + 11] - 1)
        if not (
            _has_literal(text, key_ends, _VIRTUAL)
            and _has_literal(text, length_ends, _LOCATION)
            and _has_literal(text, location_ends, _LOCATION_END)
            and _has_literal(text, offset_ends[has_time], _LAST_MODIFIED)
            and _has_literal(text, offset_ends[has_etag], _ETAG)
            and np.array_equal(quotes[first[has_etag] + 14], ends[has_etag] - 1)
            and _has_literal(text, ends, _REF_END)
        ):
            return False
        starts = length_ends + len(_LOCATION)
        self._locations = self._set_spans(rows, starts + shifts, location_ends - starts)
        if has_etag.any():
            starts = offset_ends[has_etag] + len(_ETAG)
            self._etags = self._set_spans(
                rows[has_etag], starts + shifts[has_etag], ends[has_etag] - 1 - starts
            )
        if has_time.any():
            starts = offset_ends[has_time] + len(_LAST_MODIFIED)
            times = _read_decimals(text, starts, ends[has_time])
            if times is None or int(times.max()) > MAX_U32 or not times.all():
                return False
            self._last_modified = np.zeros(len(self._starts), np.uint32)
            self._last_modified[rows[has_time]] = times
        return self._read_range(
            rows,
            _read_decimals(text, key_ends + len(_VIRTUAL), length_ends),
            _read_decimals(text, location_ends + len(_LOCATION_END), offset_ends),
        )

    def read_inline(self, rows: NDArray[np.int64]) -> bool:
        text, key_ends, ends, _ = self._extract(rows)
        found, values = _find_small_numbers(text, num_lists=len(rows))
        offsets = np.append(np.searchsorted(found, key_ends), len(found))
        counts = np.diff(offsets)
        has_bytes = counts > 0
        # Each number starts after the previous one, or after the start of the list.
        before = np.append(0, found)[:-1]
        list_ends = key_ends + len(_INLINE)
        before[offsets[:-1][has_bytes]] = list_ends[has_bytes] - 1
        list_ends[has_bytes] = found[offsets[1:][has_bytes] - 1]
        if not (
            _has_literal(text, key_ends, _INLINE)
            and _has_all_digits(values, found - before).all()
            and np.array_equal(list_ends, ends - (len(_INLINE_END) - 1))
            and _has_literal(text, list_ends, _INLINE_END)
        ):
            return False
        self._inline = _make_absent(values, len(self._starts))
        self._inline.starts[rows], self._inline.lengths[rows] = offsets[:-1], counts
        self._offset[rows], self._length[rows] = offsets[:-1], counts
        return True

    def _extract(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the padded text of some rows, where their keys and they end in it.

        The last column is what is added to these positions to get those in the whole text.
        """
        if len(rows) == len(self._starts):
            return self._text, self._key_ends, self._ends, np.zeros(len(rows), np.int64)
        is_selected = np.zeros(len(self._starts), bool)
        is_selected[rows] = True
        lengths = self._ends - self._starts
        selected = self._text[: -len(_PADDING)][np.repeat(is_selected, lengths)]
        bounds = to_offsets(lengths[rows])
        shifts = self._starts[rows] - bounds[:-1]
        return np.append(selected, _PADDING), self._key_ends[rows] - shifts, bounds[1:], shifts

    def _read_range(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.uint64] | None,
        offsets: NDArray[np.uint64] | None,
    ) -> bool:
        if lengths is None or offsets is None:
            return False
        self._length[rows], self._offset[rows] = lengths, offsets
        return True

    def _set_spans(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Spans:
        spans = _make_absent(self._text, len(self._starts))
        spans.starts[rows], spans.lengths[rows] = starts, lengths
        return spans


def _make_absent(data: NDArray[np.uint8], num_rows: int) -> Spans:
    return Spans(data, np.zeros(num_rows, np.int64), np.full(num_rows, -1, np.int64))


def _has_literal(text: NDArray[np.uint8], positions: NDArray[np.int64], literal: bytes) -> bool:
    """Whether a literal is at each position."""
    num_words = -(-len(literal) // 8)
    literal_words, masks = (
        np.frombuffer(part.ljust(8 * num_words, b"\0"), np.uint64)
        for part in (literal, b"\xff" * len(literal))
    )
    found = _view_windows(text, np.dtype(f"V{8 * num_words}"))[positions].view(np.uint64)
    return all(
        bool((found[place::num_words] & masks[place] == literal_words[place]).all())
        for place in range(num_words)
    )


def _view_windows(text: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """View bytes as overlapping words, one at each byte."""
    return np.ndarray((max(0, len(text) - dtype.itemsize + 1),), dtype, text, strides=(1,))


def _find_quotes(text: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Return the quotes that are not escaped, or None if backslashes or controls are escaped."""
    if int(text.min()) < 0x20:
        return None
    quotes = np.flatnonzero(text == _QUOTE)
    is_backslash = text == _BACKSLASH
    if is_backslash.any():
        if (is_backslash[1:] & is_backslash[:-1]).any():
            return None
        quotes = quotes[~is_backslash[quotes - 1] | (quotes == 0)]
    return quotes


def _find_small_numbers(
    text: NDArray[np.uint8], *, num_lists: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where digits are followed by a comma or the end of a list, and the numbers there.

    Numbers above 255 are returned as numbers of fewer digits. Nothing is returned if the number of
    lists is not as expected: lists are not inside lists.
    """
    digits = text - np.uint8(ord("0"))
    is_digit = digits < 10
    is_end = text == _CLOSE_LIST
    if np.count_nonzero(is_end) != num_lists:
        return np.zeros(0, np.int64), digits[:0]
    is_end |= text == _COMMA
    is_end[1:] &= is_digit[:-1]
    ends = np.flatnonzero(is_end)
    digits *= is_digit.view(np.uint8)
    # The number of the last two digits, without those from 26: ten times these are above 255.
    pairs = digits * np.uint8(10)
    pairs[1:] = pairs[:-1] + digits[1:]
    is_digit &= pairs < 26
    pairs *= is_digit.view(np.uint8)
    pairs *= np.uint8(10)
    digits[1:] += pairs[:-1]  # 256 to 259 become 0 to 3
    return ends, digits[ends - 1]


def _has_all_digits(numbers: NDArray[np.uint8], distances: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether numbers have as many digits as there are bytes between what encloses them."""
    num_digits = (numbers > 9).view(np.uint8) + (numbers > 99).view(np.uint8) + np.uint8(1)
    return np.asarray(num_digits == distances - 1, bool)


def _read_decimals(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint64] | None:
    """Read numbers, or return None if one is not the canonical form of a 64-bit number.

    Eight digits are one word: digits are added to pairs, to groups of four, and to all eight. At
    least 24 bytes of text are before the first number.
    """
    lengths = ends - starts
    longest = int(lengths.max())
    if int(lengths.min()) < 1 or longest > _MAX_DECIMALS:
        return None
    values = np.zeros(len(starts), np.uint64)
    windows = _view_windows(text, np.dtype("<u8"))
    for place in range(0, longest, 8):
        word = windows[ends - (8 + place)] ^ np.uint64(0x3030303030303030)
        word &= _LAST_BYTES[(lengths - place).clip(0, 8)]
        if (
            int(np.bitwise_or.reduce(word + np.uint64(0x7676767676767676) | word))
            & 0x8080808080808080
        ):
            return None  # a byte above 9
        word = word * np.uint64(10) + (word >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
        word = word * np.uint64(100) + (word >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
        word = word * np.uint64(10_000) + (word >> np.uint64(32)) & np.uint64(0xFFFFFFFF)
        values += word * np.uint64(10**place)
    if (values < _SMALLEST[lengths]).any():
        return None  # leading zeros, or an overflow after a leading 1
    is_long = lengths == _MAX_DECIMALS
    return None if (text[starts[is_long]] != ord("1")).any() else values
