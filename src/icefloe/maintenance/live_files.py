"""The mark phase of garbage collection: all files that a set of snapshots refers to.

The sets only grow. A file that is not in them is not used by any snapshot that was added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.maintenance.id_columns import IdSet, find_unique_rows
from icefloe.model.chunk_payload import ChunkKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.maintenance.repository_reader import RepositoryReader
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest


class LiveFiles:
    """Snapshots, their manifests, and the chunk files of these manifests."""

    def __init__(self, reader: RepositoryReader) -> None:
        self._reader = reader
        self.snapshots: set[SnapshotId] = set()
        self.manifests: set[ManifestId] = set()
        self.chunks = IdSet()

    def add(self, snapshot_ids: Iterable[SnapshotId], *, required: bool = True) -> None:
        """Add snapshots with their files and, in generation v1, their ancestors.

        A missing or damaged file is an error if ``required``, because its references are unknown;
        otherwise it is assumed to have none.
        """
        ids = set(snapshot_ids) - self.snapshots
        read_ids: set[SnapshotId] = set()
        infos = {}
        for files in self._reader.read_snapshots(ids, exclude=self.snapshots, required=required):
            read_ids.add(files.id)
            infos.update({info.id: info for info in files.manifests})
        new_manifests = [info for info in infos.values() if info.id not in self.manifests]
        for rows in self._reader.read_manifests(new_manifests, find_chunk_files, required=required):
            self.chunks.add(rows)
        self.manifests |= infos.keys()
        self.snapshots |= read_ids | ids


def find_chunk_files(manifest: Manifest) -> NDArray[np.uint8]:
    """Return the distinct chunk files that a manifest refers to."""
    payloads = manifest.payloads
    return find_unique_rows(payloads.chunk_id[payloads.kind == ChunkKind.NATIVE])
