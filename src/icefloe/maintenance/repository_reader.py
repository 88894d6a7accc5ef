"""Reads of all snapshots and manifests of a repository, each once, without caching them."""

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

    from icefloe.maintenance.progress import Progress
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.storage.interface import Storage

R = TypeVar("R")

# Everything is read once, so that a cache has no use.
_KEEP_NONE = CachingConfig(
    num_snapshot_nodes=0, num_chunk_refs=0, num_transaction_changes=0, num_bytes_chunks=0
)
_DECODED_BYTES_PER_REF = 64


@dataclass(frozen=True, slots=True)
class SnapshotNeeds:
    """The files that a snapshot refers to."""

    id: SnapshotId
    parent_id: SnapshotId | None
    manifests: tuple[ManifestFileInfo, ...]


class RepositoryReader:
    """Reads the files of one repository concurrently and without caches.

    In generation v1 the parent of a snapshot is in its file, and ancestors are read as well.
    """

    def __init__(
        self,
        storage: Storage,
        spec_version: int,
        limits: ReadLimits | None = None,
        progress: Progress = ignore_progress,
    ) -> None:
        self._assets = Assets(storage, spec_version, _KEEP_NONE)
        self._has_parents = spec_version == 1
        self._limits = limits or ReadLimits()
        self._one_by_one = storage.is_low_latency
        self._progress = progress
        self._read = {Phase.READ_SNAPSHOTS: 0, Phase.READ_MANIFESTS: 0}

    def read_snapshots(
        self,
        snapshot_ids: Iterable[SnapshotId],
        *,
        known: AbstractSet[SnapshotId] = frozenset(),
        required: bool = True,
    ) -> Iterator[SnapshotNeeds]:
        """Read snapshots and, in generation v1, their ancestors, except those that are known.

        Unless ``required``, files that are missing or cannot be decoded are skipped.
        """
        wanted = sorted(set(snapshot_ids) - known)
        seen = {*known, *wanted}
        while wanted:
            parents = set()
            for needs in map_bounded(
                lambda snapshot_id: self._fetch_needs(snapshot_id, required=required),
                wanted,
                workers=1 if self._one_by_one else self._limits.max_snapshots_in_memory,
            ):
                self._step(Phase.READ_SNAPSHOTS, len(wanted))
                if needs is not None:
                    yield needs
                    if needs.parent_id is not None:
                        parents.add(needs.parent_id)
            wanted = sorted(parents - seen)
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
        listed = sorted(infos, key=lambda info: info.id)

        def summary(info: ManifestFileInfo) -> tuple[R] | None:
            try:
                return (summarize(self._assets.fetch_manifest(info.id)),)
            except (ObjectNotFoundError, FormatError):
                if required:
                    raise
                return None

        for found in map_bounded(
            summary,
            listed,
            workers=1 if self._one_by_one else limits.max_concurrent_manifest_fetches,
            costs=lambda info: (info.size_bytes, info.num_chunk_refs * _DECODED_BYTES_PER_REF),
            budgets=(
                Budget(limits.max_compressed_manifest_mem_bytes),
                Budget(limits.max_decoded_manifest_mem_bytes),
            ),
        ):
            self._step(Phase.READ_MANIFESTS, len(listed))
            if found is not None:
                yield found[0]

    def _fetch_needs(self, snapshot_id: SnapshotId, *, required: bool) -> SnapshotNeeds | None:
        try:
            snapshot = self._assets.fetch_snapshot(snapshot_id)
        except (ObjectNotFoundError, FormatError):
            if required:
                raise
            return None
        manifests: dict[ManifestId, ManifestFileInfo] = {
            info.id: info for info in snapshot.manifest_files
        }
        # The list of manifests should be complete; the references of arrays are what readers use.
        for node in snapshot.nodes:
            if isinstance(node.node_data, ArrayNodeData):
                for ref in node.node_data.manifests:
                    manifests.setdefault(ref.id, ManifestFileInfo(ref.id, 0, 0))
        parent = snapshot.parent_id if self._has_parents else None
        return SnapshotNeeds(snapshot.id, parent, tuple(manifests.values()))

    def _step(self, phase: Phase, total: int) -> None:
        self._read[phase] += 1
        self._progress(Step(phase, self._read[phase], max(total, self._read[phase])))
