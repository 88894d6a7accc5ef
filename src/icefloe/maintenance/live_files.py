"""The mark phase of garbage collection: all files that a set of snapshots refers to.

The sets only grow. If all files could be read, no added snapshot uses a snapshot, manifest or
attributes file outside the sets, nor an old chunk file without a mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.id_columns import MarkedIds

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.maintenance.repository_reader import RepositoryReader
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId


class LiveFiles:
    """The ids of snapshots, of their manifests and attributes files, and of their chunk files.

    Of chunk files, only the ids in ``old_chunks`` are kept, which are those that may be deleted.
    """

    def __init__(self, reader: RepositoryReader, old_chunks: NDArray[np.uint8]) -> None:
        self._reader = reader
        self.snapshots: set[SnapshotId] = set()
        self.manifests: set[ManifestId] = set()
        self.attributes: set[AttributesId] = set()
        self.chunks = MarkedIds(old_chunks)

    def add(
        self,
        snapshot_ids: Iterable[SnapshotId],
        *,
        required: bool = True,
        likely: Iterable[SnapshotId] = (),
    ) -> None:
        """Add snapshots with their files and, in generation v1, their ancestors.

        If ``required``, a missing or damaged file raises, because its references are unknown;
        otherwise the file is treated as one without references. Manifests are read in the order of
        the snapshots, until all old chunk files are known to be live. Thus new snapshots should
        come first: they refer to most chunks. ``likely`` ancestors, newest first, are read ahead.
        """
        ids = [id_ for id_ in dict.fromkeys(snapshot_ids) if id_ not in self.snapshots]
        read_ids: set[SnapshotId] = set()
        infos = {}
        for files in self._reader.read_snapshots(
            ids, exclude=self.snapshots, required=required, likely=likely
        ):
            read_ids.add(files.id)
            infos.update({info.id: info for info in files.manifests})
            self.attributes |= files.attributes
        new_infos = [info for info in infos.values() if info.id not in self.manifests]
        if not self.chunks.are_all_marked():
            for chunk_ids in self._reader.read_chunk_ids(new_infos, required=required):
                self.chunks.mark(chunk_ids)
                if self.chunks.are_all_marked():
                    break
        self.manifests |= infos.keys()
        # Also ids whose files could not be read: a snapshot that was passed is live.
        self.snapshots |= read_ids | set(ids)
