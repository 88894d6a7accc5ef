"""The mark phase of garbage collection: the files that a set of snapshots refers to.

The set only grows. A file that is not in it is not referred to by any snapshot that was added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.maintenance.id_columns import IdSet, unique_rows
from icefloe.model.chunk_payload import ChunkKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.maintenance.repository_reader import RepositoryReader
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest


class LiveFiles:
    """Snapshots, their manifests, and the chunk files of those, as a column of ids."""

    def __init__(self, reader: RepositoryReader) -> None:
        self._reader = reader
        self.snapshots: set[SnapshotId] = set()
        self.manifests: set[ManifestId] = set()
        self.chunks = IdSet()

    def add(self, snapshot_ids: Iterable[SnapshotId], *, required: bool = True) -> None:
        """Add snapshots with their files and, in generation v1, their ancestors.

        A missing or damaged file is an error if ``required``, because its references are unknown;
        otherwise it has none.
        """
        wanted = set(snapshot_ids) - self.snapshots
        found: set[SnapshotId] = set()
        infos = {}
        for needs in self._reader.read_snapshots(wanted, known=self.snapshots, required=required):
            found.add(needs.id)
            infos.update({info.id: info for info in needs.manifests})
        new = [info for info in infos.values() if info.id not in self.manifests]
        for rows in self._reader.read_manifests(new, find_chunk_files, required=required):
            self.chunks.add(rows)
        self.manifests |= infos.keys()
        self.snapshots |= found | wanted


def find_chunk_files(manifest: Manifest) -> NDArray[np.uint8]:
    """Return the distinct chunk files that a manifest refers to."""
    payloads = manifest.payloads
    return unique_rows(payloads.chunk_id[payloads.kind == ChunkKind.NATIVE])
