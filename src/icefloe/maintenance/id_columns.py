"""Columns of object ids: parsing and formatting names of files, and sets.

A set takes twelve bytes per id, without Python objects. Names that are not the canonical form of an
id are ignored, because no file of a repository has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.ids import ObjectId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_NO_DIGIT = 0xFF
_VALUES = np.full(256, _NO_DIGIT, np.uint8)
_VALUES[_ALPHABET] = np.arange(32, dtype=np.uint8)
_DIGITS = 20
_BITS = ObjectId.SIZE * 8
_WEIGHTS = np.array([16, 8, 4, 2, 1], np.uint8)
# Fixed-width bytes compare and sort as one value, including zeros.
_KEY = np.dtype(f"S{ObjectId.SIZE}")
_PENDING_ROWS = 1 << 20


def parse_names(names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Parse ids; returns the positions of the names that are ids, and the bytes of these ids."""
    candidates = np.array(
        [row for row, name in enumerate(names) if len(name) == _DIGITS and name.isascii()],
        np.int64,
    )
    text = "".join(names[row] for row in candidates).encode()
    digits = _VALUES[np.frombuffer(text, np.uint8).reshape(-1, _DIGITS)]
    bits = np.unpackbits(digits[..., np.newaxis], axis=2)[..., 3:].reshape(-1, _DIGITS * 5)
    # The four bits past the end are zero in the canonical form.
    is_id = (digits != _NO_DIGIT).all(axis=1) & ~bits[:, _BITS:].any(axis=1)
    return candidates[is_id], np.packbits(bits[is_id, :_BITS], axis=1)


def format_names(rows: NDArray[np.uint8]) -> list[str]:
    """Format ids as names of files."""
    bits = np.zeros((len(rows), _DIGITS * 5), np.uint8)
    bits[:, :_BITS] = np.unpackbits(np.ascontiguousarray(rows), axis=1)
    digits = bits.reshape(len(rows), _DIGITS, 5) @ _WEIGHTS
    text = _ALPHABET[digits].tobytes().decode()
    return [text[start : start + _DIGITS] for start in range(0, len(text), _DIGITS)]


def find_unique_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the distinct ids, sorted."""
    return _to_rows(_find_unique(_to_keys(rows)))


class IdSet:
    """A set of ids that only grows."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, _KEY)
        self._pending: list[NDArray[np.bytes_]] = []
        self._pending_rows = 0

    def add(self, rows: NDArray[np.uint8]) -> None:
        """Add ids, one row each."""
        self._pending.append(_to_keys(rows))
        self._pending_rows += len(rows)
        # A merge copies the whole set, so it waits for enough pending rows.
        if self._pending_rows > max(_PENDING_ROWS, len(self._sorted)):
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
            self._pending, self._pending_rows = [], 0


def _to_keys(rows: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    return np.ascontiguousarray(rows).view(_KEY).reshape(-1)


def _to_rows(keys: NDArray[np.bytes_]) -> NDArray[np.uint8]:
    return keys.view(np.uint8).reshape(-1, ObjectId.SIZE)


def _find_unique(keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    ordered = np.sort(keys)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
