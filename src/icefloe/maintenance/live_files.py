"""What snapshots need: their manifests, and the chunk files that those refer to.

The set only grows. Whatever is not in it when files are deleted is what no snapshot that was
counted refers to; several references into one chunk file count as one.
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
    """Snapshots with all that they need; chunk files by the million are one column of bytes."""

    def __init__(self, reader: RepositoryReader) -> None:
        self._reader = reader
        self.snapshots: set[SnapshotId] = set()
        self.manifests: set[ManifestId] = set()
        self.chunks = IdSet()

    def add(self, snapshot_ids: Iterable[SnapshotId], *, required: bool = True) -> None:
        """Count some snapshots in and, in generation v1, their ancestors.

        Unless ``required``, what is missing or damaged needs nothing; else it is an error, because
        what cannot be read cannot say what it needs.
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
    """Find the chunk files that a manifest refers to, each once."""
    payloads = manifest.payloads
    return unique_rows(payloads.chunk_id[payloads.kind == ChunkKind.NATIVE])
