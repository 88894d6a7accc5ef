"""Finding single chunks among the references of one array, for whoever asks again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index_columns import find_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.manifest import ArrayManifest

# Beyond this the numbers of chunks do not fit an integer column, and coordinates are searched.
_ROOM = 2**62


class RefFinder:
    """An array's references with their chunks numbered, so that one look-up is one search.

    Where every chunk of a box is there, which is the rule, not even that: the number is the row.
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
        if len(refs) and span <= _ROOM:
            keys = np.zeros(len(refs), np.int64)
            for axis, stride in enumerate(strides):
                keys += refs.coords[:, axis].astype(np.int64) * stride
            first, last = int(keys[0]), int(keys[-1])
            if last - first + 1 == len(keys):
                self._first = first
            else:
                self._keys = keys

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Look one chunk up."""
        row = self.row(indices)
        return None if row is None else self.refs.payloads[row]

    def row(self, indices: tuple[int, ...]) -> int | None:
        """Find the row of one chunk."""
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
