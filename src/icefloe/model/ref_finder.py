"""Lookups of single chunks of one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from icefloe.model.chunk_index_columns import find_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.manifest import ArrayManifest

# The numbers of a larger grid do not fit int64, so it is searched by coordinates.
_MAX_CHUNKS = 2**62


class RefFinder(Protocol):
    """Finds the references of one array."""

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return the reference of a chunk, or None."""


class IndexedRefs:
    """Finds references by the number of a chunk in the grid, with one binary search.

    If the numbers are consecutive, the common case, the number gives the row without a search.
    """

    __slots__ = ("_first", "_keys", "_strides", "_widths", "refs")

    def __init__(self, refs: ArrayManifest) -> None:
        self.refs = refs
        self._widths = [int(column.max()) + 1 for column in refs.coords.T] if len(refs) else []
        strides: list[int] = []
        span = 1
        for width in reversed(self._widths):
            strides.insert(0, span)
            span *= width
        self._strides = strides
        self._keys: NDArray[np.int64] | None = None
        self._first: int | None = None
        if len(refs) and span <= _MAX_CHUNKS:
            keys = np.zeros(len(refs), np.int64)
            for axis, stride in enumerate(strides):
                keys += refs.coords[:, axis].astype(np.int64) * stride
            first, last = int(keys[0]), int(keys[-1])
            if last - first + 1 == len(keys):
                self._first = first
            else:
                self._keys = keys

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return the reference of a chunk, or None."""
        row = self.find_row(indices)
        return None if row is None else self.refs.payloads[row]

    def find_row(self, indices: tuple[int, ...]) -> int | None:
        """Return the row of a chunk, or None."""
        if len(indices) != self.refs.coords.shape[1] or not len(self.refs):
            return None
        key = 0
        for coord, width, stride in zip(indices, self._widths, self._strides, strict=True):
            if coord >= width:
                return None
            key += coord * stride
        if self._first is not None:
            row = key - self._first
            return row if 0 <= row < len(self.refs) else None
        if self._keys is None:
            return find_row(self.refs.coords, indices)
        row = int(self._keys.searchsorted(key))
        return row if row < len(self._keys) and self._keys[row] == key else None
