"""Garbage collection: deletes the files that no live snapshot refers to and that are old enough.

A snapshot is live if it is in the history of a branch or tag, or if its file is newer than the
cutoff time. The files of an open session are not referenced by any snapshot, so the cutoff should
be before the start of every session that may still commit: a commit fails if its files were deleted
(`icefloe.refs.commit_check`). File times come from the storage's clock, and the cutoff is moved to
it (`icefloe.storage.clock`).

Concurrent commits are safe. While files are deleted, a mark refuses commits of old ones
(`icefloe.refs.collection_mark`). The refs are read again before each kind of file is deleted, and
new snapshots are marked as live. In generations v2 and draft, unreachable snapshots are first
removed from ``repo`` or ``state.json`` by a conditional write, which fails if a commit was based on
one of them; once it succeeds, no commit can be based on them. Generation v1 has no such write: if a
branch or tag is created at an old unreachable snapshot while that snapshot is being deleted, the
ref dangles, and the collection stops with an error before it deletes manifests and chunks.

Referring files are deleted before the files they refer to, so that an interrupted collection
leaves garbage but no broken references.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import (
    ConflictError,
    ErrorKind,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icefloe.format.ids import to_id_rows, to_ids
from icefloe.maintenance.limits import map_bounded
from icefloe.maintenance.live_files import LiveFiles
from icefloe.maintenance.progress import Phase, ignore_progress
from icefloe.maintenance.repository_reader import RepositoryReader
from icefloe.maintenance.sweep import Sweeper
from icefloe.model.id_columns import IdSet, MarkedIds, parse_names
from icefloe.model.ids import AttributesId, ManifestId, ObjectId, SnapshotId
from icefloe.model.times import require_time_zone
from icefloe.refs import changes, retention
from icefloe.refs.collection_mark import hold_mark
from icefloe.refs.opening import make_refs
from icefloe.refs.single_object import SingleObjectRefs
from icefloe.storage.clock import correct_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from icefloe.format.generation import FileKind, Generation
    from icefloe.maintenance.limits import ReadLimits
    from icefloe.maintenance.progress import Progress
    from icefloe.maintenance.sweep import DeleteLimits, GCSummary
    from icefloe.model.repo_info import RepoInfo
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import ObjectInfo, Storage

_LOGGER = logging.getLogger(__name__)
_MAX_ATTEMPTS = 100
_LISTING_BATCH = 1 << 12


def collect_garbage(
    storage: Storage,
    generation: Generation,
    *,
    older_than: datetime,
    dry_run: bool = False,
    read_limits: ReadLimits | None = None,
    delete_limits: DeleteLimits | None = None,
    progress: Progress = ignore_progress,
) -> GCSummary:
    """Delete the files of a repository that are not live and are older than ``older_than``.

    Requests: a listing for each kind of file, all concurrent, a request for each live snapshot and
    for each live manifest, and a request for every thousand deleted files. Once all old chunk files
    are known to be live, the remaining manifests are not read. In generation v1, snapshots are read
    ahead in the order of their times, also some that turn out to be garbage.

    Parameters
    ----------
    older_than
        Newer files are kept. A time in the future counts as now, because files written during the
        collection may be in use.
    dry_run
        Whether to count files without changing anything.

    Raises
    ------
    ObjectNotFoundError
        If a file that a branch or a tag refers to is missing; the collection stops. A missing
        manifest is noticed only if it could refer to a file that would be deleted.
    """
    if storage.read_only and not dry_run:
        raise ReadOnlyError(f"{storage.url} is read-only: open it with write access")
    cutoff = min(require_time_zone("delete_object_older_than", older_than), datetime.now(UTC))
    if not dry_run:  # which writes nothing
        cutoff = correct_limit(storage, cutoff)
    reader = RepositoryReader(storage, generation, read_limits, progress)
    with nullcontext() if dry_run else hold_mark(storage, cutoff) as mark:
        sweeper = Sweeper(storage, delete_limits, dry_run=dry_run, progress=progress, mark=mark)
        return _collect(storage, generation, reader, sweeper, cutoff, dry_run=dry_run)


def _collect(
    storage: Storage,
    generation: Generation,
    reader: RepositoryReader,
    sweeper: Sweeper,
    cutoff: datetime,
    *,
    dry_run: bool,
) -> GCSummary:
    for _ in range(_MAX_ATTEMPTS):
        listings = _list_all_files(storage, generation, cutoff)
        refs = make_refs(storage, generation)
        has_single_object = isinstance(refs, SingleObjectRefs)
        marker_class = _SingleObjectMarker if has_single_object else _SeparateRefsMarker
        marker: _Marker = marker_class(refs, reader, listings, dry_run=dry_run)
        try:
            marker.mark()
        except ConflictError as error:
            if error.kind is not ErrorKind.REPO_INFO_UPDATED:
                raise
            continue
        _sweep(generation, marker, listings, sweeper)
        sweeper.delete_abandoned_uploads(cutoff)
        if sweeper.can_continue:
            sweeper.count_bytes(refs.collect_ref_files(before=cutoff, dry_run=dry_run))
        marker.finish(sweeper)
        summary = sweeper.make_summary()
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
        f"garbage collection of {storage.url} failed {_MAX_ATTEMPTS} times, because snapshots to "
        "delete came into use again each time; try again",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


def _get_file_kinds(generation: Generation) -> dict[Phase, FileKind]:
    """Return the kinds of files in the order of their deletion."""
    layout = generation.layout
    kinds = {
        Phase.DELETE_SNAPSHOTS: layout.snapshots,
        Phase.DELETE_TRANSACTION_LOGS: layout.transaction_logs,
        Phase.DELETE_MANIFESTS: layout.manifests,
        Phase.DELETE_ATTRIBUTES: layout.attributes,
        Phase.DELETE_CHUNKS: layout.chunks,
    }
    return {phase: files for phase, files in kinds.items() if files is not None}


def _sweep(
    generation: Generation, marker: _Marker, listings: Mapping[Phase, _Listing], sweeper: Sweeper
) -> None:
    for phase, files in _get_file_kinds(generation).items():
        if not sweeper.can_continue:
            sweeper.skip(phase)
            continue
        # Filter first: the refs are read again only if garbage is left, and then few files are
        # compared.
        garbage = listings[phase].old.without(marker.get_live_ids(phase))
        if len(garbage):
            marker.refresh()
            garbage = garbage.without(marker.get_live_ids(phase))
        sweeper.delete(phase, files, garbage.id_rows, garbage.sizes_bytes)


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of one kind: ids, one row each, and sizes."""

    id_rows: NDArray[np.uint8]
    sizes_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.id_rows)

    def without(self, ids: IdSet | MarkedIds) -> _Files:
        is_kept = ~ids.contains(self.id_rows)
        return _Files(self.id_rows[is_kept], self.sizes_bytes[is_kept])


@dataclass(frozen=True, slots=True)
class _Listing:
    """A listing: the files that are old enough to delete, and the ids of the recent ones.

    ``old`` is ordered by time, newest first, if this was requested.
    """

    old: _Files
    recent: NDArray[np.uint8]


def _list_all_files(
    storage: Storage, generation: Generation, cutoff: datetime
) -> dict[Phase, _Listing]:
    """List the files of all kinds, concurrently."""
    kinds = _get_file_kinds(generation)
    ordered = generation.layout.snapshots if generation.has_parents_in_snapshots else None
    listings = map_bounded(
        lambda files: _list_files(
            storage, files, generation.id_size, cutoff, newest_first=files is ordered
        ),
        kinds.values(),
        workers=1 if storage.is_low_latency else len(kinds),
    )
    return dict(zip(kinds, listings, strict=True))


def _list_files(
    storage: Storage, files: FileKind, id_size: int, cutoff: datetime, *, newest_first: bool
) -> _Listing:
    """List the files of one kind.

    Files whose names are not ids are left out, so they are never deleted.
    """
    parts: list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]] = []
    names: list[str] = []
    sizes: list[int] = []
    is_old: list[bool] = []

    def finish_part() -> None:
        indices, id_rows = parse_names(names, id_size)
        parts.append((id_rows, np.array(sizes, np.int64)[indices], np.array(is_old, bool)[indices]))
        for column in (names, sizes, is_old):
            column.clear()

    infos: Iterable[ObjectInfo] = storage.list(files.prefix)
    if newest_first:
        infos = sorted(infos, key=lambda info: info.last_modified, reverse=True)
    for info in infos:
        names.append(files.parse_name(info.key))
        sizes.append(info.size_bytes)
        is_old.append(info.last_modified < cutoff)
        if len(names) >= _LISTING_BATCH:
            finish_part()
    finish_part()
    id_rows, sizes_bytes, old = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Listing(_Files(id_rows[old], sizes_bytes[old]), id_rows[~old])


class _Marker(ABC):
    """The mark phase: collects the live files."""

    def __init__(
        self,
        refs: Refs,
        reader: RepositoryReader,
        listings: Mapping[Phase, _Listing],
        *,
        dry_run: bool,
    ) -> None:
        self._refs = refs
        self._dry_run = dry_run
        snapshots = listings[Phase.DELETE_SNAPSHOTS]
        self._newest_first = to_ids(snapshots.old.id_rows, SnapshotId)
        self._old = set(self._newest_first)
        self._recent = set(to_ids(snapshots.recent, SnapshotId))
        self._live = LiveFiles(reader, listings[Phase.DELETE_CHUNKS].old.id_rows)

    @abstractmethod
    def mark(self) -> None:
        """Mark all live files.

        If one object contains all snapshots, also remove the garbage from it, so that no commit can
        use it.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Mark the files of snapshots that were committed in the meantime."""

    @abstractmethod
    def finish(self, sweeper: Sweeper) -> None:
        """Record the collection, if that was not possible before the deletions."""

    @abstractmethod
    def find_live_logs(self) -> AbstractSet[SnapshotId]:
        """Return the snapshots whose transaction logs are live."""

    def get_live_ids(self, phase: Phase) -> IdSet | MarkedIds:
        """Return the ids of the live files of one kind."""
        match phase:
            case Phase.DELETE_SNAPSHOTS:
                return _build_id_set(self._live.snapshots, SnapshotId)
            case Phase.DELETE_TRANSACTION_LOGS:
                return _build_id_set(self.find_live_logs(), SnapshotId)
            case Phase.DELETE_MANIFESTS:
                return _build_id_set(self._live.manifests, ManifestId)
            case Phase.DELETE_ATTRIBUTES:
                return _build_id_set(self._live.attributes, AttributesId)
            case _:
                return self._live.chunks


class _SeparateRefsMarker(_Marker):
    """Branches and tags are separate files and do not change together."""

    def mark(self) -> None:
        self.refresh()
        # A recent snapshot may belong to a commit that has not yet moved its branch.
        self._live.add(self._recent, required=False)

    def refresh(self) -> None:
        try:
            self._live.add(self._refs.fetch_live_snapshots(), likely=self._newest_first)
        except ObjectNotFoundError as error:
            error.add_note(
                "A branch or tag needs this file; garbage collection stopped before it deleted "
                "anything else."
            )
            raise

    def finish(self, sweeper: Sweeper) -> None:
        """Do nothing: collections are not recorded."""

    def find_live_logs(self) -> AbstractSet[SnapshotId]:
        return self._live.snapshots


class _SingleObjectMarker(_Marker):
    """One object contains all refs and snapshots and changes atomically: ``repo``, for example."""

    _kept: RepoInfo | None = None
    _disk_full: StorageError | None = None
    """Why the object still contains the garbage."""

    @property
    def _object(self) -> SingleObjectRefs[Any]:
        assert isinstance(self._refs, SingleObjectRefs)  # noqa: S101 - for type checkers
        return self._refs

    def mark(self) -> None:
        # Fetched after the listing, so a snapshot that is in the object but not in the listing is
        # new, and not garbage.
        self._keep(self._object.fetch())
        if not self._dry_run:
            changes.require_online(self._info)
        newest_first = sorted(self._info.snapshots, key=lambda snapshot: snapshot.flushed_at)[::-1]
        all_ids = {snapshot.id: None for snapshot in newest_first}.keys()
        reachable = retention.find_reachable(self._info)
        self._garbage, self._existing = (all_ids - reachable) & self._old, all_ids
        self._live.add(id_ for id_ in all_ids if id_ in reachable)
        self._live.add((all_ids - self._garbage) | self._recent, required=False)
        if self._dry_run:
            self._keep(self._simulate(self._info))
        else:
            self._record()
        self._mark_all()

    def refresh(self) -> None:
        # In a dry run the object still contains the garbage; keep the simulated state.
        if self._dry_run:
            return
        if self._disk_full is None:
            self._keep(self._object.fetch())
        else:
            self._record()  # there may be room now
        self._mark_all()

    def finish(self, sweeper: Sweeper) -> None:
        if self._disk_full is not None:
            self._record()
        if self._disk_full is not None:
            sweeper.record_error(
                StorageError(
                    "the collection is not recorded in the repository, so a session whose files it "
                    f"deleted may commit: make room and collect again: {self._disk_full}",
                    kind=self._disk_full.kind,
                )
            )

    def _record(self) -> None:
        """Remove the garbage from the object.

        If the disk has no room for that, it is done later: otherwise a full disk could not be
        freed. Until then a branch could be created at a snapshot that is being deleted, as in
        generation v1.
        """
        try:
            info = self._object.collect_snapshots(self._garbage, existing=self._existing)
        except StorageError as error:
            if error.kind is not ErrorKind.DISK_FULL:
                raise
            self._disk_full = error
            info = self._simulate(self._object.fetch())
        else:
            self._disk_full = None
        self._keep(info)

    def _simulate(self, info: RepoInfo) -> RepoInfo:
        _, without_garbage = retention.collect_snapshots(info, self._garbage, self._existing)
        return without_garbage

    def find_live_logs(self) -> AbstractSet[SnapshotId]:
        pruned = {
            log for snapshot in self._info.snapshots for log in snapshot.pruned_ancestor_tx_logs
        }
        return self._live.snapshots | pruned

    def _keep(self, info: RepoInfo) -> None:
        """Keep a state with its snapshots decoded; those of a file are decoded by each loop."""
        if info is not self._kept:
            self._kept, self._info = info, replace(info, snapshots=tuple(info.snapshots))

    def _mark_all(self) -> None:
        self._live.add(snapshot.id for snapshot in self._info.snapshots)


def _build_id_set(ids: AbstractSet[ObjectId], kind: type[ObjectId]) -> IdSet:
    id_set = IdSet()
    id_set.add(to_id_rows(list(ids), kind))
    return id_set
