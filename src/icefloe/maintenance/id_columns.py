"""Columns of object ids: parsing and formatting of file names, and sets.

Ids are rows of a matrix of bytes. A set takes twelve bytes per id, without Python objects. Names
that are not the canonical form of an id are ignored, because no file of a repository has them.
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
_NUM_DIGITS = 20
_NUM_BITS = ObjectId.SIZE * 8
_BIT_WEIGHTS = np.array([16, 8, 4, 2, 1], np.uint8)
# Fixed-width bytes compare and sort as one value; zero bytes are significant.
_KEY = np.dtype(f"S{ObjectId.SIZE}")
_MIN_PENDING_ROWS = 1 << 20


def parse_names(names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Parse ids; return the indices of the names that are ids, and these ids."""
    candidates = np.array(
        [index for index, name in enumerate(names) if len(name) == _NUM_DIGITS and name.isascii()],
        np.int64,
    )
    text = "".join(names[index] for index in candidates).encode()
    digits = _DIGIT_VALUES[np.frombuffer(text, np.uint8).reshape(-1, _NUM_DIGITS)]
    # A digit is the five low bits of its byte.
    bits = np.unpackbits(digits[..., np.newaxis], axis=2)[..., 3:].reshape(-1, _NUM_DIGITS * 5)
    # The four bits past the end are zero in the canonical form.
    is_id = (digits != _NOT_A_DIGIT).all(axis=1) & ~bits[:, _NUM_BITS:].any(axis=1)
    return candidates[is_id], np.packbits(bits[is_id, :_NUM_BITS], axis=1)


def format_names(rows: NDArray[np.uint8]) -> list[str]:
    """Format ids as file names."""
    bits = np.zeros((len(rows), _NUM_DIGITS * 5), np.uint8)
    bits[:, :_NUM_BITS] = np.unpackbits(np.ascontiguousarray(rows), axis=1)
    digits = bits.reshape(len(rows), _NUM_DIGITS, 5) @ _BIT_WEIGHTS
    text = _ALPHABET[digits].tobytes().decode()
    return [text[start : start + _NUM_DIGITS] for start in range(0, len(text), _NUM_DIGITS)]


def find_unique_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the distinct ids, sorted."""
    return _to_rows(_find_unique(_to_keys(rows)))


class IdSet:
    """A set of ids that only grows."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, _KEY)
        self._pending: list[NDArray[np.bytes_]] = []
        self._num_pending = 0

    def add(self, rows: NDArray[np.uint8]) -> None:
        """Add ids, one row each."""
        self._pending.append(_to_keys(rows))
        self._num_pending += len(rows)
        # A merge copies the whole set, so it waits until at least as many ids are pending.
        if self._num_pending > max(_MIN_PENDING_ROWS, len(self._sorted)):
            self._merge()

    def contains(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return for each id whether it is in the set."""
        self._merge()
        if not len(self._sorted):
            return np.zeros(len(rows), bool)
        keys = _to_keys(rows)
        positions = np.searchsorted(self._sorted, keys)
        nearest = self._sorted[np.minimum(positions, len(self._sorted) - 1)]
        return np.asarray(nearest == keys, bool)

    def __len__(self) -> int:
        self._merge()
        return len(self._sorted)

    def _merge(self) -> None:
        if self._pending:
            self._sorted = _find_unique(np.concatenate([self._sorted, *self._pending]))
            self._pending, self._num_pending = [], 0


def _to_keys(rows: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    return np.ascontiguousarray(rows).view(_KEY).reshape(-1)


def _to_rows(keys: NDArray[np.bytes_]) -> NDArray[np.uint8]:
    return keys.view(np.uint8).reshape(-1, ObjectId.SIZE)


def _find_unique(keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    ordered = np.sort(keys)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
