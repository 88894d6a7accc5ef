"""Columns of object ids: parsing and formatting of file names, and sets.

Ids are rows of a matrix of bytes, whose width is the size of the ids. Sets contain no Python
objects. Names that are not the canonical form of an id are ignored, because no file of a repository
has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.ids import ObjectId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_NOT_A_DIGIT = 0xFF
# The value of each digit of Crockford's base 32, by its ASCII code.
_DIGIT_VALUES = np.full(256, _NOT_A_DIGIT, np.uint8)
_DIGIT_VALUES[_ALPHABET] = np.arange(32, dtype=np.uint8)
_BIT_WEIGHTS = np.array([16, 8, 4, 2, 1], np.uint8)
# Two digits at a time, as 16-bit words in memory order: their text by value, and the reverse.
_PAIRS = np.stack(np.broadcast_arrays(_ALPHABET[:, np.newaxis], _ALPHABET), 2).view(np.uint16)
_PAIR_TEXT = _PAIRS.reshape(1024)
_NOT_A_PAIR = 0xFFFF
_PAIR_VALUES = np.full(1 << 16, _NOT_A_PAIR, np.uint16)
_PAIR_VALUES[_PAIR_TEXT] = np.arange(1024, dtype=np.uint16)
_BLOCK_ROWS = 1 << 14  # temporary arrays fit in the CPU cache
_MIN_PENDING_ROWS = 1 << 20


def count_digits(id_size: int) -> int:
    """Return the length of the text form of an id."""
    return -(-id_size * 8 // 5)


def parse_names(
    names: Sequence[str], id_size: int = ObjectId.SIZE
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Parse ids; return the indices of the names that are ids, and these ids."""
    num_digits = count_digits(id_size)
    candidates = np.array(
        [index for index, name in enumerate(names) if len(name) == num_digits and name.isascii()],
        np.int64,
    )
    text = "".join(names[index] for index in candidates).encode()
    is_id, rows = parse_digits(np.frombuffer(text, np.uint8).reshape(-1, num_digits), id_size)
    return candidates[is_id], rows[is_id]


def parse_digits(
    text: NDArray[np.uint8], id_size: int
) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Parse a row of ASCII characters per id; return which rows are ids, and all rows decoded."""
    if text.shape[1] % 2 or id_size % 4:
        return _parse_single_digits(text, id_size)
    is_id = np.ones(len(text), bool)
    words = np.empty((len(text), id_size // 4), ">u4")
    all_pairs = np.ascontiguousarray(text).view(np.uint16)
    unused_bits = np.uint16((1 << text.shape[1] * 5 - id_size * 8) - 1)
    for begin in range(0, len(text), _BLOCK_ROWS):
        block = slice(begin, begin + _BLOCK_ROWS)
        pairs = _PAIR_VALUES[all_pairs[block]]
        is_wrong = (pairs[:, -1] & unused_bits) != 0
        if pairs.max() == _NOT_A_PAIR:
            is_wrong |= (pairs == _NOT_A_PAIR).any(axis=1)
        is_id[block] = ~is_wrong
        # Shifts drop the bits that do not belong to the word.
        columns = pairs.T.astype(np.uint32)
        for index in range(words.shape[1]):
            words[block, index] = _join_pairs(columns, 32 * index)
    return is_id, words.view(np.uint8)


def _join_pairs(columns: NDArray[np.uint32], first_bit: int) -> NDArray[np.uint32]:
    """Return the 32 bits from ``first_bit`` of rows of pairs of digits, of ten bits each."""
    word = np.zeros(columns.shape[1], np.uint32)
    for index in range(first_bit // 10, min(-(-(first_bit + 32) // 10), len(columns))):
        shift = first_bit + 32 - 10 * (index + 1)
        if shift >= 0:
            word |= columns[index] << np.uint32(shift)
        else:
            word |= columns[index] >> np.uint32(-shift)
    return word


def _parse_single_digits(
    text: NDArray[np.uint8], id_size: int
) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    num_bits = id_size * 8
    digits = _DIGIT_VALUES[text]
    # A digit is the five low bits of its byte.
    bits = np.unpackbits(digits[..., np.newaxis], axis=2)[..., 3:].reshape(
        len(text), text.shape[1] * 5
    )
    # The bits past the end are zero in the canonical form.
    is_id = (digits != _NOT_A_DIGIT).all(axis=1) & ~bits[:, num_bits:].any(axis=1)
    return is_id, np.packbits(bits[:, :num_bits], axis=1)


def format_names(rows: NDArray[np.uint8]) -> list[str]:
    """Format ids as file names."""
    num_digits = count_digits(rows.shape[1])
    text = format_digits(rows).tobytes().decode()
    return [text[start : start + num_digits] for start in range(0, len(text), num_digits)]


def format_digits(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Format ids as rows of ASCII characters."""
    num_digits = count_digits(rows.shape[1])
    if num_digits % 2 or rows.shape[1] % 4:
        return _format_single_digits(rows)
    pairs = np.empty((len(rows), num_digits // 2), np.uint16)
    for begin in range(0, len(rows), _BLOCK_ROWS):
        block = slice(begin, begin + _BLOCK_ROWS)
        words = np.ascontiguousarray(rows[block]).view(">u4").T.astype(np.uint64, order="C")
        # The 64 bits that start at each word; the last ones are padded with zeros.
        longs = words << np.uint64(32)
        longs[:-1] |= words[1:]
        for index in range(pairs.shape[1]):
            word, bit = divmod(10 * index, 32)
            values = longs[word] >> np.uint64(54 - bit) & np.uint64(1023)
            pairs[block, index] = _PAIR_TEXT[values.view(np.int64)]
    return pairs.view(np.uint8)


def _format_single_digits(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    num_digits, num_bits = count_digits(rows.shape[1]), rows.shape[1] * 8
    bits = np.zeros((len(rows), num_digits * 5), np.uint8)
    bits[:, :num_bits] = np.unpackbits(np.ascontiguousarray(rows), axis=1)
    digits: NDArray[np.uint8] = bits.reshape(len(rows), num_digits, 5) @ _BIT_WEIGHTS
    return _ALPHABET[digits]


def find_unique_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the distinct ids, sorted."""
    return _find_unique(to_sort_keys(rows)).view(np.uint8).reshape(-1, rows.shape[1])


class IdSet:
    """A set of ids of one size that only grows."""

    def __init__(self) -> None:
        self._sorted: NDArray[np.bytes_] | None = None
        self._pending: list[NDArray[np.bytes_]] = []
        self._num_pending = 0

    def add(self, rows: NDArray[np.uint8]) -> None:
        """Add ids, one row each."""
        if not len(rows):
            return
        self._pending.append(to_sort_keys(rows))
        self._num_pending += len(rows)
        # A merge copies the whole set, so it waits until at least as many ids are pending.
        num_sorted = 0 if self._sorted is None else len(self._sorted)
        if self._num_pending > max(_MIN_PENDING_ROWS, num_sorted):
            self._merge()

    def contains(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return for each id whether it is in the set."""
        ids = self._merge()
        if ids is None:
            return np.zeros(len(rows), bool)
        keys = to_sort_keys(rows)
        positions = np.searchsorted(ids, keys)
        nearest = ids[np.minimum(positions, len(ids) - 1)]
        return np.asarray(nearest == keys, bool)

    def __len__(self) -> int:
        ids = self._merge()
        return 0 if ids is None else len(ids)

    def _merge(self) -> NDArray[np.bytes_] | None:
        if self._pending:
            parts = self._pending if self._sorted is None else [self._sorted, *self._pending]
            self._sorted = _find_unique(np.concatenate(parts))
            self._pending, self._num_pending = [], 0
        return self._sorted


class MarkedIds:
    """A fixed set of ids of one size, some of which are marked."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self._sorted = _find_unique(to_sort_keys(rows))
        self._is_marked = np.zeros(len(self._sorted), bool)
        self._num_unmarked = len(self._sorted)
        self._pending: list[NDArray[np.bytes_]] = []
        self._num_pending = 0

    def are_all_marked(self) -> bool:
        """Whether no id of the set is left without a mark."""
        # Ids are looked up in batches, but at once if they could be all that are left.
        if self._num_pending >= self._num_unmarked:
            self._mark_pending()
        return not self._num_unmarked

    def mark(self, rows: NDArray[np.uint8]) -> None:
        """Mark those of the ids that are in the set."""
        self._pending.append(to_sort_keys(rows))
        self._num_pending += len(rows)
        if self._num_pending >= _MIN_PENDING_ROWS:
            self._mark_pending()

    def contains(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return for each id of the set whether it is marked."""
        self._mark_pending()
        is_marked: NDArray[np.bool_] = self._is_marked[
            np.searchsorted(self._sorted, to_sort_keys(rows))
        ]
        return is_marked

    def _mark_pending(self) -> None:
        if not self._num_pending or not self._num_unmarked:
            self._pending, self._num_pending = [], 0
            return
        # Sorted lookups visit the set in order, which is faster if it is large.
        keys = _find_unique(np.concatenate(self._pending))
        self._pending, self._num_pending = [], 0
        positions = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        self._is_marked[positions[self._sorted[positions] == keys]] = True
        self._num_unmarked = len(self._sorted) - int(np.count_nonzero(self._is_marked))


def to_sort_keys(rows: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Return ids as values that sort and compare like their bytes."""
    # Fixed-width bytes compare and sort as one value; zero bytes are significant.
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(-1)


def _find_unique(keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    ordered = np.sort(keys)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
