"""The mark phase of garbage collection: all files that a set of snapshots refers to.

The sets only grow. If all files could be read, no added snapshot uses a file outside the sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.id_columns import IdSet, find_unique_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.maintenance.repository_reader import RepositoryReader
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest


class LiveFiles:
    """The ids of snapshots, of their manifests and attributes files, and of their chunk files."""

    def __init__(self, reader: RepositoryReader) -> None:
        self._reader = reader
        self.snapshots: set[SnapshotId] = set()
        self.manifests: set[ManifestId] = set()
        self.attributes: set[AttributesId] = set()
        self.chunks = IdSet()

    def add(self, snapshot_ids: Iterable[SnapshotId], *, required: bool = True) -> None:
        """Add snapshots with their files and, in generation v1, their ancestors.

        If ``required``, a missing or damaged file raises, because its references are unknown;
        otherwise the file is treated as one without references.
        """
        ids = set(snapshot_ids) - self.snapshots
        read_ids: set[SnapshotId] = set()
        infos = {}
        for files in self._reader.read_snapshots(ids, exclude=self.snapshots, required=required):
            read_ids.add(files.id)
            infos.update({info.id: info for info in files.manifests})
            self.attributes |= files.attributes
        new_infos = [info for info in infos.values() if info.id not in self.manifests]
        for chunk_ids in self._reader.read_manifests(new_infos, _find_chunk_ids, required=required):
            self.chunks.add(chunk_ids)
        self.manifests |= infos.keys()
        # Also ids whose files could not be read: a snapshot that was passed is live.
        self.snapshots |= read_ids | ids


def _find_chunk_ids(manifest: Manifest) -> NDArray[np.uint8]:
    """Return the distinct ids of the chunk files that a manifest refers to, one per row."""
    payloads = manifest.payloads
    return find_unique_rows(payloads.chunk_id[payloads.kind == ChunkKind.NATIVE])
