"""Index of the manifests of one array, by their extents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.ids import ManifestId
    from icefloe.model.node import ManifestRef


class ManifestIndex:
    """The extents of an array's manifests, as columns."""

    __slots__ = ("_only", "_refs", "_starts", "_stops")

    def __init__(self, refs: tuple[ManifestRef, ...], ndim: int) -> None:
        self._refs = refs
        self._only = refs[0] if len(refs) == 1 else None
        # Extents without ranges contain all chunks; coordinates are u4.
        boxes = [ref.extents.ranges or ((0, 2**32),) * ndim for ref in refs]
        bounds = np.array(boxes, np.int64).reshape(len(refs), ndim, 2)
        self._starts, self._stops = bounds[:, :, 0], bounds[:, :, 1]

    def find(self, indices: tuple[int, ...]) -> ManifestId | None:
        """Return the id of the first manifest whose extents contain a chunk, or None."""
        if self._only is not None:
            # Not strict: extents without ranges contain all chunks.
            for index, (start, stop) in zip(indices, self._only.extents.ranges, strict=False):
                if not start <= index < stop:
                    return None
            return self._only.id
        if not self._refs:
            return None
        point = np.array(indices, np.int64)
        inside = np.all((self._starts <= point) & (point < self._stops), axis=1)
        first = int(inside.argmax())
        return self._refs[first].id if inside[first] else None

    def mask_chunks_of(
        self, manifest_id: ManifestId, coords: NDArray[np.uint32]
    ) -> NDArray[np.bool_]:
        """Return a mask of the chunks for which `find` returns this manifest.

        Extents may overlap (Icechunk 1 writes such manifests when the splitting rules change); a
        chunk then belongs to the first.
        """
        if not len(coords):
            return np.zeros(0, bool)
        low, high = coords.min(axis=0), coords.max(axis=0)
        touching = np.flatnonzero(np.all((self._starts <= high) & (low < self._stops), axis=1))
        is_match, is_unassigned = np.zeros(len(coords), bool), np.ones(len(coords), bool)
        for number in touching.tolist():
            start, stop = self._starts[number], self._stops[number]
            if (start <= low).all() and (high < stop).all():
                inside = is_unassigned
            else:
                inside = is_unassigned & np.all((start <= coords) & (coords < stop), axis=1)
            if self._refs[number].id == manifest_id:
                is_match |= inside
            is_unassigned = is_unassigned & ~inside
        return is_match
