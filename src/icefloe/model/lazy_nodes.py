"""Nodes and manifest files of a large snapshot, made into objects when they are accessed."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.ids import ManifestId
from icefloe.model.lazy_sequence import LazySequence
from icefloe.model.node import NodeSnapshot
from icefloe.model.snapshot import ManifestFileInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.model.ids import NodeId


class LazyNodes(LazySequence[NodeSnapshot]):
    """Nodes ordered by path. Access checks the nodes that it decodes, iteration checks all."""

    __slots__ = ()

    @property
    @abstractmethod
    def paths(self) -> Sequence[str]:
        """The paths of all nodes, read on access."""

    @property
    @abstractmethod
    def by_id(self) -> Mapping[NodeId, NodeSnapshot]:
        """The nodes by id."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The size of the encoded nodes."""


class ManifestFiles(LazySequence[ManifestFileInfo]):
    """Manifest files as columns, ordered by id."""

    __slots__ = ("_counts", "_ids", "_sizes")

    def __init__(
        self, ids: NDArray[np.uint8], sizes: NDArray[np.uint64], counts: NDArray[np.uint32]
    ) -> None:
        self._ids, self._sizes, self._counts = ids, sizes, counts

    def __len__(self) -> int:
        return len(self._ids)

    def get_item(self, row: int) -> ManifestFileInfo:
        """Return the file in a row."""
        manifest_id = ManifestId(self._ids[row].tobytes())
        return ManifestFileInfo(manifest_id, int(self._sizes[row]), int(self._counts[row]))

    def get_range(self, start: int, stop: int) -> Sequence[ManifestFileInfo]:
        """Return the files in consecutive rows."""
        raw, size = np.ascontiguousarray(self._ids[start:stop]).tobytes(), self._ids.shape[1]
        ids = [ManifestId(raw[byte : byte + size]) for byte in range(0, len(raw), size)]
        sizes, counts = self._sizes[start:stop].tolist(), self._counts[start:stop].tolist()
        return list(map(ManifestFileInfo, ids, sizes, counts))

    def __iter__(self) -> Iterator[ManifestFileInfo]:
        return iter(self.get_range(0, len(self)))

    def find(self, manifest_id: ManifestId) -> ManifestFileInfo | None:
        """Return the file with an id, or None."""
        row = bisect_left(
            range(len(self)), manifest_id.raw, key=lambda row: self._ids[row].tobytes()
        )
        info = self.get_item(row) if row < len(self) else None
        return info if info is not None and info.id == manifest_id else None
