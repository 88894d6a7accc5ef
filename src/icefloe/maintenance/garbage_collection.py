"""Garbage collection: deletes the files that no branch, no tag and no recent snapshot refers to.

A file is deleted if it was listed, is older than a time by the clock of the storage, and no live
snapshot refers to it. Live are the histories of all branches and tags, and every snapshot whose
file is recent. Nothing refers to the files of an open session yet: the time must be before the
start of every session that is still to be committed.

Concurrent commits are safe. The references are read again before each kind of file is deleted, and
new snapshots are marked as live. In generation v2, unreachable snapshots are first removed from
``repo`` in one conditional write, which fails if a commit was based on one of them; after it none
can be. Generation v1 has no such write: a branch or tag that is created for an old unreachable
snapshot while it is deleted points at nothing. The collection then stops with an error, before it
deletes manifests and chunks.

Referring files are deleted first, so that an interrupted collection leaves garbage, and nothing
broken.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import ConflictError, ErrorKind, ObjectNotFoundError, ReadOnlyError
from icefloe.format.ids import ids_of, rows_of
from icefloe.maintenance.id_columns import IdSet, parse_names
from icefloe.maintenance.live_files import LiveFiles
from icefloe.maintenance.progress import Phase, ignore_progress
from icefloe.maintenance.repository_reader import RepositoryReader
from icefloe.maintenance.sweep import Sweeper
from icefloe.model.ids import ManifestId, ObjectId, SnapshotId
from icefloe.model.times import require_time_zone
from icefloe.refs import changes, retention
from icefloe.refs.ref_files import RefFiles
from icefloe.refs.repo_file import RepoFile

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from icefloe.maintenance.limits import ReadLimits
    from icefloe.maintenance.progress import Progress
    from icefloe.maintenance.sweep import DeleteLimits, GCSummary
    from icefloe.storage.interface import Storage

_LOGGER = logging.getLogger(__name__)
_TRIES = 100
_SNAPSHOTS, _TRANSACTION_LOGS = "snapshots/", "transactions/"
_MANIFESTS, _CHUNKS = "manifests/", "chunks/"
_LISTED_AT_ONCE = 1 << 16


def collect_garbage(
    storage: Storage,
    spec_version: int,
    *,
    older_than: datetime,
    dry_run: bool = False,
    read_limits: ReadLimits | None = None,
    delete_limits: DeleteLimits | None = None,
    progress: Progress = ignore_progress,
) -> GCSummary:
    """Delete the files of a repository that are not live and older than a time.

    Requests: one listing for each kind of file, one for each live snapshot and manifest, and one
    for every thousand deleted files.

    Parameters
    ----------
    older_than
        Younger files are kept. A time in the future counts as now, because files written during
        the collection may be in use.
    dry_run
        Whether to count files without changing anything.

    Raises
    ------
    ObjectNotFoundError
        If a file that a branch or a tag refers to is missing; nothing more is deleted then.
    """
    if storage.read_only and not dry_run:
        raise ReadOnlyError(f"{storage.url} is read-only: nothing can be deleted")
    cutoff = min(require_time_zone("delete_object_older_than", older_than), datetime.now(UTC))
    kept_by: type[_Marker] = _RefFilesMarker if spec_version == 1 else _RepoFileMarker
    reader = RepositoryReader(storage, spec_version, read_limits, progress)
    for _ in range(_TRIES):
        snapshots = _list(storage, _SNAPSHOTS, cutoff)
        kept = kept_by(storage, reader, snapshots, dry_run=dry_run)
        try:
            kept.settle()
        except ConflictError as error:
            if error.kind is not ErrorKind.REPO_INFO_UPDATED:
                raise
            continue
        sweeper = Sweeper(storage, delete_limits, dry_run=dry_run, progress=progress)
        _sweep(storage, cutoff, kept, snapshots, sweeper)
        sweeper.delete_abandoned_uploads(cutoff)
        summary = sweeper.summary()
        _LOGGER.info(
            "%s %d snapshots, %d transaction logs, %d manifests and %d chunks (%d bytes) of %s; "
            "%d failed",
            "would delete" if dry_run else "deleted",
            summary.snapshots_deleted,
            summary.transaction_logs_deleted,
            summary.manifests_deleted,
            summary.chunks_deleted,
            summary.bytes_deleted,
            storage.url,
            summary.objects_failed_to_delete,
        )
        return summary
    raise ConflictError(
        f"{storage.url}: {_TRIES} times in a row a snapshot was committed on one that was to be "
        "collected; try again",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


def _sweep(
    storage: Storage, cutoff: datetime, kept: _Marker, snapshots: _Listed, sweeper: Sweeper
) -> None:
    for phase, prefix in (
        (Phase.DELETE_SNAPSHOTS, _SNAPSHOTS),
        (Phase.DELETE_TRANSACTION_LOGS, _TRANSACTION_LOGS),
        (Phase.DELETE_MANIFESTS, _MANIFESTS),
        (Phase.DELETE_CHUNKS, _CHUNKS),
    ):
        if not sweeper.can_continue:
            sweeper.skip(phase)
            continue
        listed = snapshots if phase is Phase.DELETE_SNAPSHOTS else _list(storage, prefix, cutoff)
        # Before the references are read again, so that few files are left to compare after it.
        old = listed.old.without(kept.files(phase))
        if len(old):
            kept.refresh()
            old = old.without(kept.files(phase))
        sweeper.delete(phase, prefix, old.rows, old.sizes_bytes)


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of one kind: ids, one row each, and sizes."""

    rows: NDArray[np.uint8]
    sizes_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def without(self, others: IdSet) -> _Files:
        rest = ~others.contains(self.rows)
        return _Files(self.rows[rest], self.sizes_bytes[rest])


@dataclass(frozen=True, slots=True)
class _Listed:
    """A listing: the files that are old enough to be deleted, and the ids of the others."""

    old: _Files
    young: NDArray[np.uint8]


def _list(storage: Storage, prefix: str, cutoff: datetime) -> _Listed:
    """List the files of one kind; files whose names are not ids are never deleted."""
    parts: list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]] = []
    names: list[str] = []
    sizes: list[int] = []
    is_old: list[bool] = []

    def end_part() -> None:
        places, rows = parse_names(names)
        parts.append((rows, np.array(sizes, np.int64)[places], np.array(is_old, bool)[places]))
        for column in (names, sizes, is_old):
            column.clear()

    for info in storage.list(prefix):
        names.append(info.key[len(prefix) :])
        sizes.append(info.size_bytes)
        is_old.append(info.last_modified < cutoff)
        if len(names) >= _LISTED_AT_ONCE:
            end_part()
    end_part()
    rows, sizes_bytes, old = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Listed(_Files(rows[old], sizes_bytes[old]), rows[~old])


class _Marker(ABC):
    """The mark phase: the files that are live, as far as known."""

    def __init__(
        self, storage: Storage, reader: RepositoryReader, snapshots: _Listed, *, dry_run: bool
    ) -> None:
        self._storage = storage
        self._dry_run = dry_run
        self._listed = snapshots
        self._young = set(ids_of(snapshots.young, SnapshotId))
        self._live = LiveFiles(reader)

    @abstractmethod
    def settle(self) -> None:
        """Mark all live files, and prevent that other snapshots become live again."""

    @abstractmethod
    def refresh(self) -> None:
        """Mark the files of snapshots that were committed since."""

    @abstractmethod
    def logs(self) -> AbstractSet[SnapshotId]:
        """Return the snapshots whose transaction logs are live."""

    def files(self, phase: Phase) -> IdSet:
        """Return the live files of one kind."""
        match phase:
            case Phase.DELETE_SNAPSHOTS:
                return _id_set(self._live.snapshots, SnapshotId)
            case Phase.DELETE_TRANSACTION_LOGS:
                return _id_set(self.logs(), SnapshotId)
            case Phase.DELETE_MANIFESTS:
                return _id_set(self._live.manifests, ManifestId)
            case _:
                return self._live.chunks


class _RefFilesMarker(_Marker):
    """Generation v1: each branch and tag is a file, and snapshot files name their parents."""

    def settle(self) -> None:
        self.refresh()
        # A snapshot file is written before the branch points at it.
        self._live.add(self._young, required=False)

    def refresh(self) -> None:
        refs = RefFiles(self._storage)
        tips = {*refs.fetch_branches().values(), *refs.fetch_tags().values()}
        try:
            self._live.add(tips)
        except ObjectNotFoundError as error:
            error.add_note("A branch or a tag refers to it; nothing more was deleted.")
            raise

    def logs(self) -> AbstractSet[SnapshotId]:
        return self._live.snapshots


class _RepoFileMarker(_Marker):
    """Generation v2: ``repo`` has all references, and changes atomically."""

    def settle(self) -> None:
        self._refs = RepoFile(self._storage)
        # After the listing: a snapshot that is not listed was written since.
        self._info = self._refs.fetch()
        if not self._dry_run:
            changes.require_online(self._info)
        everything = {snapshot.id for snapshot in self._info.snapshots}
        reachable = retention.find_reachable(self._info)
        old = set(ids_of(self._listed.old.rows, SnapshotId))
        dropped = (everything - reachable) & old
        self._live.add(reachable)
        self._live.add((everything - dropped) | self._young, required=False)
        if self._dry_run:
            _, self._info = retention.collect_snapshots(self._info, dropped, everything)
        else:
            self._info = self._refs.collect_snapshots(dropped, known=everything)
        self._mark_known()

    def refresh(self) -> None:
        if not self._dry_run:
            self._info = self._refs.fetch()
            self._mark_known()

    def logs(self) -> AbstractSet[SnapshotId]:
        pruned = {
            log for snapshot in self._info.snapshots for log in snapshot.pruned_ancestor_tx_logs
        }
        return self._live.snapshots | pruned

    def _mark_known(self) -> None:
        self._live.add(snapshot.id for snapshot in self._info.snapshots)


def _id_set(ids: AbstractSet[ObjectId], kind: type[ObjectId]) -> IdSet:
    found = IdSet()
    found.add(rows_of(sorted(ids), kind))
    return found
