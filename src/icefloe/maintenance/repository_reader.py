"""Reads all snapshots and manifests of a repository, each once and without caching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from icefloe.assets import Assets
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.maintenance.limits import Budget, ReadLimits, map_bounded
from icefloe.maintenance.progress import Phase, Step, ignore_progress
from icefloe.model.config import CachingConfig
from icefloe.model.node import ArrayNodeData
from icefloe.model.snapshot import ManifestFileInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from icefloe.format.generation import Generation
    from icefloe.maintenance.progress import Progress
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.storage.interface import Storage

R = TypeVar("R")

NO_CACHE = CachingConfig(
    num_snapshot_nodes=0, num_chunk_refs=0, num_transaction_changes=0, num_bytes_chunks=0
)
DECODED_BYTES_PER_REF = 64


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files that a snapshot refers to."""

    id: SnapshotId
    parent_id: SnapshotId | None
    manifests: tuple[ManifestFileInfo, ...]
    attributes: frozenset[AttributesId]


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
    ) -> Iterator[SnapshotFiles]:
        """Read snapshots and, in generation v1, their ancestors, except those in ``exclude``.

        Unless ``required``, files that are missing or cannot be decoded are skipped.
        """
        pending = sorted(set(snapshot_ids) - exclude)
        seen = {*exclude, *pending}
        while pending:
            parents = set()
            for files in map_bounded(
                lambda snapshot_id: self._fetch_files(snapshot_id, required=required),
                pending,
                workers=1 if self._is_sequential else self._limits.max_snapshots_in_memory,
            ):
                self._report_step(Phase.READ_SNAPSHOTS, len(pending))
                if files is not None:
                    yield files
                    if files.parent_id is not None:
                        parents.add(files.parent_id)
            pending = sorted(parents - seen)
            seen |= parents

    def read_manifests(
        self,
        infos: Iterable[ManifestFileInfo],
        summarize: Callable[[Manifest], R],
        *,
        required: bool = True,
    ) -> Iterator[R]:
        """Read manifests, and yield the result of ``summarize`` for each.

        Unless ``required``, files that are missing or cannot be decoded are skipped.
        """
        limits = self._limits
        ordered = sorted(infos, key=lambda info: info.id)

        def fetch_summary(info: ManifestFileInfo) -> tuple[R] | None:
            try:
                return (summarize(self._assets.fetch_manifest(info.id)),)
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
            snapshot = self._assets.fetch_snapshot(snapshot_id)
        except (ObjectNotFoundError, FormatError):
            if required:
                raise
            return None
        manifests: dict[ManifestId, ManifestFileInfo] = {
            info.id: info for info in snapshot.manifest_files
        }
        # Readers use the references of arrays, even to manifests that the list lacks.
        for node in snapshot.nodes:
            if isinstance(node.node_data, ArrayNodeData):
                for ref in node.node_data.manifests:
                    manifests.setdefault(ref.id, ManifestFileInfo(ref.id, 0, 0))
        parent = snapshot.parent_id if self._has_parents else None
        attributes = frozenset(
            [node.attributes_ref.id for node in snapshot.nodes if node.attributes_ref is not None]
        )
        return SnapshotFiles(snapshot.id, parent, tuple(manifests.values()), attributes)

    def _report_step(self, phase: Phase, total: int) -> None:
        self._num_read[phase] += 1
        self._progress(Step(phase, self._num_read[phase], max(total, self._num_read[phase])))
