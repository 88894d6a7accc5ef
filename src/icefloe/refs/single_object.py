"""Refs in one object, which is replaced by compare-and-swap.

A change reads the object, applies a pure function (`icefloe.refs.changes`) and replaces the object
if it is still the one that was read. If another writer replaced it first, the change is repeated on
the new state.
"""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.model.lazy_history import LazySnapshots
from icefloe.model.repo_info import ExpirationRan
from icefloe.refs import changes, ref_errors, retention
from icefloe.refs.commit_check import SessionStart
from icefloe.refs.history import walk_history
from icefloe.refs.interface import Refs
from icefloe.refs.names import require_ref_name
from icefloe.storage.backoff import compute_backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from icefloe.model.ids import SnapshotId
    from icefloe.model.lazy_history import SnapshotReader
    from icefloe.model.repo_info import RepoInfo, UpdateType
    from icefloe.model.snapshot import SnapshotInfo, SnapshotLinks
    from icefloe.model.storage_settings import StorageRetriesSettings
    from icefloe.refs.changes import Change, ChangeResult
    from icefloe.refs.commit_check import CommitCheck
    from icefloe.refs.interface import Publish, SnapshotSource
    from icefloe.refs.retention import ExpirationPolicy
    from icefloe.storage.interface import Storage, Version

_IMMEDIATE_TRIES = 5


@dataclass(frozen=True, slots=True)
class Current:
    """The state that was read, and the version of its object."""

    info: RepoInfo
    version: Version


C = TypeVar("C", bound=Current)


class SingleObjectRefs(Refs, Generic[C]):
    """Reads and changes one object; each read is one request.

    With ``pinned``, reads come from that state without a request. Subclasses read the object
    (`_fetch`) and replace it (`_replace`).
    """

    def __init__(self, storage: Storage, pinned: RepoInfo | None = None) -> None:
        self._storage = storage
        self._pinned = pinned

    @abstractmethod
    def _fetch(self) -> C:
        """Fetch the current state."""

    @abstractmethod
    def _replace(self, current: C, kind: UpdateType, info: RepoInfo) -> RepoInfo | None:
        """Replace the object that was read with the state after a change.

        Returns the new state, or None if another writer replaced the object first. After a lost
        response, reads the object to find out whether the change took effect.
        """

    @abstractmethod
    def _fetch_update_retries(self, info: RepoInfo) -> StorageRetriesSettings:
        """Return how often and when a change is tried again; called after a conflict."""

    def fetch(self) -> RepoInfo:
        """Fetch the current state, or return the pinned one."""
        return self._fetch().info if self._pinned is None else self._pinned

    def pin(self) -> Self:
        return type(self)(self._storage, self.fetch())

    def with_assets(self, assets: SnapshotSource) -> Self:  # noqa: ARG002 - the object has the history
        return self

    def fetch_branches(self) -> Mapping[str, SnapshotId]:
        return self.fetch().branches

    def fetch_branch(self, branch: str) -> SnapshotId:
        return changes.find_branch(self.fetch(), branch)

    def fetch_tags(self) -> Mapping[str, SnapshotId]:
        return self.fetch().tags

    def fetch_tag(self, tag: str) -> SnapshotId:
        return changes.find_tag(self.fetch(), tag)

    def fetch_deleted_tags(self) -> frozenset[str]:
        return self.fetch().deleted_tags

    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        return changes.find_snapshot(self.fetch(), snapshot_id)

    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        snapshots = self.fetch().snapshots
        if isinstance(snapshots, LazySnapshots):
            reader = snapshots.open_reader()
            return map(reader.read, self._iter_rows(snapshots, reader, snapshot_id))
        infos = {info.id: info for info in snapshots}

        def get_info(snapshot_id: SnapshotId) -> SnapshotInfo:
            if snapshot_id not in infos:
                raise ref_errors.missing_snapshot_error(snapshot_id, self._storage.url)
            return infos[snapshot_id]

        return walk_history(snapshot_id, get_info)

    def iter_ancestry(
        self, snapshot_id: SnapshotId
    ) -> tuple[Callable[[Any], SnapshotInfo], Iterator[Any]]:
        snapshots = self.fetch().snapshots
        if not isinstance(snapshots, LazySnapshots):
            return super().iter_ancestry(snapshot_id)
        reader = snapshots.open_reader()
        return reader.read, self._iter_rows(snapshots, reader, snapshot_id)

    def iter_links(self, snapshot_id: SnapshotId) -> Iterator[SnapshotLinks]:
        snapshots = self.fetch().snapshots
        if not isinstance(snapshots, LazySnapshots):
            return super().iter_links(snapshot_id)
        reader = snapshots.open_reader()
        return map(reader.read_links, self._iter_rows(snapshots, reader, snapshot_id))

    def _iter_rows(
        self, snapshots: LazySnapshots, reader: SnapshotReader, snapshot_id: SnapshotId
    ) -> Iterator[int]:
        row = snapshots.find_row(snapshot_id)
        if row is None:
            raise ref_errors.missing_snapshot_error(snapshot_id, self._storage.url)
        yield from reader.iter_ancestry(row)

    def fetch_live_snapshots(self) -> set[SnapshotId]:
        return retention.find_reachable(self.fetch())

    def require_online(self) -> None:
        changes.require_online(self.fetch())

    def get_session_start(self) -> SessionStart:
        updates = self.fetch().latest_updates
        return SessionStart(last_update=updates[0].updated_at if updates else None)

    @abstractmethod
    def _run_check(self, check: CommitCheck, info: RepoInfo) -> None:
        """Run a check before the object with this state is replaced."""

    def commit(
        self,
        branch: str,
        parent: SnapshotId,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        self._commit(branch, parent, None, snapshot, check)

    def begin_commit(self, branch: str, parent: SnapshotId) -> Publish:
        current = self._fetch()
        changes.require_online(current.info)
        changes.require_tip(current.info, branch, parent)
        return partial(self._commit, branch, parent, current)

    def _commit(
        self,
        branch: str,
        parent: SnapshotId,
        current: C | None,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        ref_errors.require_parent(snapshot, parent)
        self.change(
            lambda info: changes.commit(info, branch, parent, snapshot),
            current=current,
            check=check,
        )

    def add_snapshot(self, snapshot: SnapshotInfo, check: CommitCheck | None = None) -> None:
        parent = snapshot.parent_id
        if parent is None:
            raise InvalidInputError(
                f"snapshot {snapshot.id} has no parent: only the first snapshot may have none",
                kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
            )
        self.change(lambda info: changes.add_snapshot(info, snapshot, parent), check=check)

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        require_ref_name(branch, new=True)
        self.change(lambda info: changes.create_branch(info, branch, snapshot_id))

    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        self.change(lambda info: changes.reset_branch(info, branch, snapshot_id, expected))

    def delete_branch(self, branch: str) -> None:
        ref_errors.require_not_main(branch)
        self.change(lambda info: changes.delete_branch(info, branch))

    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        require_ref_name(tag, new=True)
        self.change(lambda info: changes.create_tag(info, tag, snapshot_id))

    def delete_tag(self, tag: str) -> None:
        self.change(lambda info: changes.delete_tag(info, tag))

    def expire_snapshots(
        self, policy: ExpirationPolicy, *, dry_run: bool = False
    ) -> frozenset[SnapshotId]:
        expired: frozenset[SnapshotId] = frozenset()
        if dry_run:
            expired, _ = retention.plan_expiration(self.fetch(), policy)
            return expired

        def change(info: RepoInfo) -> ChangeResult:
            nonlocal expired
            expired, new_info = retention.plan_expiration(info, policy)
            return ExpirationRan(), new_info

        self.change(change)
        return expired

    def collect_snapshots(
        self, dropped: AbstractSet[SnapshotId], *, existing: AbstractSet[SnapshotId]
    ) -> RepoInfo:
        """Remove unreachable snapshots from the list; see `retention.collect_snapshots`."""
        return self.change(lambda info: retention.collect_snapshots(info, dropped, existing))

    def change(
        self,
        change: Change,
        *,
        in_any_status: bool = False,
        current: C | None = None,
        check: CommitCheck | None = None,
    ) -> RepoInfo:
        """Apply a change and return the new state; retry after conflicts.

        ``current`` is the state for the first attempt, if the caller has read it already.
        ``check`` runs in each attempt.
        """
        for attempt in itertools.count():
            state, current = current or self._fetch(), None
            if not in_any_status:
                changes.require_online(state.info)
            kind, new_info = change(state.info)
            if check is not None:
                self._run_check(check, state.info)
            if (updated := self._replace(state, kind, new_info)) is not None:
                return updated
            retries = self._fetch_update_retries(state.info)
            if attempt + 1 >= retries.effective_max_tries:
                break
            if attempt >= _IMMEDIATE_TRIES:
                initial_s = retries.effective_initial_backoff_ms / 1000
                max_s = retries.effective_max_backoff_ms / 1000
                time.sleep(compute_backoff_s(attempt - _IMMEDIATE_TRIES + 1, initial_s, max_s))
        raise ConflictError(
            f"{self._storage.url}: other writers changed the repository during each of "
            f"{attempt + 1} attempts; try again, or raise repo_update_retries",
            kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
        )
