"""Reads all snapshots and manifests of a repository, each once and without caching."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from icefloe.assets import Assets
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.maintenance.limits import Budget, ReadLimits, map_bounded
from icefloe.maintenance.progress import Phase, Step, ignore_progress
from icefloe.model.config import CachingConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.generation import Generation
    from icefloe.maintenance.progress import Progress
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import ManifestFileInfo, SnapshotFiles
    from icefloe.storage.interface import Storage

R = TypeVar("R")

_MIN_READ_AHEAD, _MAX_READ_AHEAD = 32, 64
NO_CACHE = CachingConfig(
    num_snapshot_nodes=0, num_chunk_refs=0, num_transaction_changes=0, num_bytes_chunks=0
)
DECODED_BYTES_PER_REF = 64


class _ReadAhead:
    """Chooses snapshots to read before it is known that they are needed, and keeps their files."""

    def __init__(self, likely: Iterable[SnapshotId]) -> None:
        self._likely = iter(likely)
        self._files: dict[SnapshotId, SnapshotFiles] = {}
        self._num_read = self._num_used = 0

    def choose(self, known: AbstractSet[SnapshotId]) -> AbstractSet[SnapshotId]:
        """Return the next snapshots to read; fewer if those read before were not used."""
        count = min(_MIN_READ_AHEAD + 2 * self._num_used - self._num_read, _MAX_READ_AHEAD)
        new = (id_ for id_ in self._likely if id_ not in known)
        chosen = dict.fromkeys(islice(new, max(count, 0))).keys()
        self._num_read += len(chosen)
        return chosen

    def keep(self, snapshot_id: SnapshotId, files: SnapshotFiles | None) -> None:
        """Keep the files of a snapshot until they are used."""
        if files is not None:
            self._files[snapshot_id] = files

    def take(self, snapshot_id: SnapshotId) -> SnapshotFiles | None:
        """Return the files of a snapshot that turned out to be needed, if it was read ahead."""
        files = self._files.pop(snapshot_id, None)
        self._num_used += files is not None
        return files


class RepositoryReader:
    """Reads the files of one repository concurrently and without caches.

    In generation v1 only the file of a snapshot names its parent, so ancestors are read as well.
    """

    def __init__(
        self,
        storage: Storage,
        generation: Generation,
        limits: ReadLimits | None = None,
        progress: Progress = ignore_progress,
    ) -> None:
        self._assets = Assets(storage, generation, NO_CACHE)
        self._has_parents = generation.has_parents_in_snapshots
        self._limits = limits or ReadLimits()
        self._is_sequential = storage.is_low_latency
        self._progress = progress
        self._num_read = {Phase.READ_SNAPSHOTS: 0, Phase.READ_MANIFESTS: 0}

    def read_snapshots(
        self,
        snapshot_ids: Iterable[SnapshotId],
        *,
        exclude: AbstractSet[SnapshotId] = frozenset(),
        required: bool = True,
        likely: Iterable[SnapshotId] = (),
    ) -> Iterator[SnapshotFiles]:
        """Read snapshots and, in generation v1, their ancestors, except those in ``exclude``.

        Unless ``required``, files that are missing or cannot be decoded are skipped. ``likely`` are
        the snapshots that are probably ancestors, newest first: some of them are read ahead, so
        that not each ancestor waits for the response with its child. Not more than 32 files plus
        twice the number of those that turned out to be ancestors are read ahead.
        """
        pending = [id_ for id_ in dict.fromkeys(snapshot_ids) if id_ not in exclude]
        seen = {*exclude, *pending}
        ahead = _ReadAhead(() if self._is_sequential or not self._has_parents else likely)
        while pending:
            speculative = ahead.choose(seen)
            parents: dict[SnapshotId, None] = {}
            for snapshot_id, files in self._fetch_all(pending, speculative, required=required):
                self._report_step(Phase.READ_SNAPSHOTS, len(pending))
                if snapshot_id in speculative:
                    ahead.keep(snapshot_id, files)
                elif files is not None:
                    yield files
                    if files.parent_id is not None and self._has_parents:
                        parents[files.parent_id] = None
            pending = []
            while parents:
                parent_id, _ = parents.popitem()
                if parent_id in seen:
                    continue
                seen.add(parent_id)
                if (known := ahead.take(parent_id)) is None:
                    pending.append(parent_id)
                else:
                    yield known
                    if known.parent_id is not None:
                        parents[known.parent_id] = None

    def _fetch_all(
        self, pending: list[SnapshotId], speculative: AbstractSet[SnapshotId], *, required: bool
    ) -> Iterator[tuple[SnapshotId, SnapshotFiles | None]]:
        ids = [*pending, *speculative]
        fetched = map_bounded(
            lambda id_: self._fetch_files(id_, required=required and id_ not in speculative),
            ids,
            workers=1 if self._is_sequential else self._limits.max_snapshots_in_memory,
        )
        return zip(ids, fetched, strict=True)

    def read_manifests(
        self, infos: Iterable[ManifestFileInfo], summarize: Callable[[Manifest], R]
    ) -> Iterator[R]:
        """Read manifests, and yield the result of ``summarize`` for each."""
        return self._map_manifests(
            lambda manifest_id: summarize(self._assets.fetch_manifest(manifest_id)), infos
        )

    def read_chunk_ids(
        self, infos: Iterable[ManifestFileInfo], *, required: bool = True
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield the ids of the chunk files that each manifest refers to, one per row.

        Unless ``required``, files that are missing or cannot be decoded are skipped.
        """
        return self._map_manifests(self._assets.fetch_chunk_ids, infos, required=required)

    def _map_manifests(
        self,
        fetch: Callable[[ManifestId], R],
        infos: Iterable[ManifestFileInfo],
        *,
        required: bool = True,
    ) -> Iterator[R]:
        limits = self._limits
        ordered = list(infos)

        def fetch_summary(info: ManifestFileInfo) -> tuple[R] | None:
            try:
                return (fetch(info.id),)
            except (ObjectNotFoundError, FormatError):
                if required:
                    raise
                return None

        for summary in map_bounded(
            fetch_summary,
            ordered,
            workers=1 if self._is_sequential else limits.max_concurrent_manifest_fetches,
            costs=lambda info: (info.size_bytes, info.num_chunk_refs * DECODED_BYTES_PER_REF),
            budgets=(
                Budget(limits.max_compressed_manifest_mem_bytes),
                Budget(limits.max_decoded_manifest_mem_bytes),
            ),
        ):
            self._report_step(Phase.READ_MANIFESTS, len(ordered))
            if summary is not None:
                yield summary[0]

    def _fetch_files(self, snapshot_id: SnapshotId, *, required: bool) -> SnapshotFiles | None:
        try:
            return self._assets.fetch_snapshot_files(snapshot_id)
        except (ObjectNotFoundError, FormatError):
            if required:
                raise
            return None

    def _report_step(self, phase: Phase, total: int) -> None:
        self._num_read[phase] += 1
        self._progress(Step(phase, self._num_read[phase], max(total, self._num_read[phase])))
