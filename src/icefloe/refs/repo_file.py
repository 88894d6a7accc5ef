"""The refs of generation v2: the object ``repo`` (schema `repo.fbs`) and its backups.

A change reads ``repo``, applies a pure function (`icefloe.refs.changes`), copies the old object to
``overwritten/`` and replaces it by compare-and-swap: a get, a copy and a put. If another writer
replaced ``repo`` first, the change is repeated on the new state.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.assets import Assets, fetch_file
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from icefloe.format.generation import V2
from icefloe.format.keys import OVERWRITTEN, REPO
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import (
    FEATURE_FLAGS,
    ExpirationRan,
    MetadataChanged,
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoInitialized,
    RepoStatus,
    RepoStatusChanged,
)
from icefloe.model.transaction_log import TransactionLog
from icefloe.refs import change_counter, changes, ref_errors, retention
from icefloe.refs.history import walk_history
from icefloe.refs.interface import Refs
from icefloe.refs.names import MAIN, require_ref_name
from icefloe.refs.ops_log_reconstruction import reconstruct_ops_log
from icefloe.refs.repeated_creation import create_or_compare
from icefloe.storage.backoff import compute_backoff_s
from icefloe.storage.interface import Create, UpdateIfMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from icefloe.model.ids import NodeId
    from icefloe.model.repo_info import FeatureFlag
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.refs.changes import Change, ChangeResult
    from icefloe.refs.interface import SnapshotSource
    from icefloe.refs.retention import ExpirationPolicy
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage, Version

_IMMEDIATE_TRIES = 5
# Backups sort newest first: their names count down from the year 3000, in milliseconds.
_FAR_FUTURE_MS = 32_503_680_000_000


class RepoFile(Refs):
    """Reads and changes ``repo``; each read is one request, except the ops log.

    With ``pinned``, reads come from that state without a request.
    """

    generation = V2

    def __init__(self, storage: Storage, pinned: RepoInfo | None = None) -> None:
        self._storage = storage
        self._pinned = pinned

    @classmethod
    def create(cls, storage: Storage, initial: Snapshot, config: RepositoryConfig | None) -> None:
        """Create ``repo``, after the transaction log of the first snapshot, which is empty."""
        none: frozenset[NodeId] = frozenset()
        no_chunks = ChunkIndexColumns.of({})
        log = TransactionLog(initial.id, none, none, none, none, none, none, no_chunks)
        with contextlib.suppress(PreconditionFailedError):
            file = Assets(storage, V2).encode_transaction_log(log)
            storage.put(file.key, file.data, Create())
        info = RepoInfo(
            spec_version=cls.generation.spec_version,
            branches={MAIN: initial.id},
            tags={},
            deleted_tags=frozenset(),
            snapshots=(initial.get_info(),),
            status=RepoStatus(RepoAvailability.online, initial.flushed_at),
            latest_updates=(OpsLogEntry(RepoInitialized(), initial.flushed_at),),
            config=config,
        )
        storage.put(REPO, encode_repo_info(info), Create())

    @classmethod
    def restore(cls, storage: Storage, state: RefsState) -> None:
        """Create ``repo`` with a reconstructed ops log, in one put."""
        infos = {info.id: info for info in state.snapshots}
        *_, root = walk_history(state.branches[MAIN], infos.__getitem__)
        updates = reconstruct_ops_log(state.branches, state.tags, {}, infos)
        info = RepoInfo(
            spec_version=cls.generation.spec_version,
            branches=dict(state.branches),
            tags=dict(state.tags),
            deleted_tags=state.deleted_tags,
            snapshots=tuple(infos[snapshot_id] for snapshot_id in sorted(infos)),
            status=RepoStatus(RepoAvailability.online, root.flushed_at),
            latest_updates=tuple(reversed(updates)),
            config=state.config,
        )
        create_or_compare(storage, REPO, encode_repo_info(info))

    def fetch(self) -> RepoInfo:
        """Fetch the current state, or return the pinned one."""
        return self._fetch()[0] if self._pinned is None else self._pinned

    def pin(self) -> RepoFile:
        return RepoFile(self._storage, self.fetch())

    def with_assets(self, assets: SnapshotSource) -> RepoFile:  # noqa: ARG002 - `repo` records history
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
        infos = {info.id: info for info in self.fetch().snapshots}

        def get_info(snapshot_id: SnapshotId) -> SnapshotInfo:
            if snapshot_id not in infos:
                raise ref_errors.missing_snapshot_error(snapshot_id, self._storage.url)
            return infos[snapshot_id]

        yield from walk_history(snapshot_id, get_info)

    def fetch_live_snapshots(self) -> set[SnapshotId]:
        return retention.find_reachable(self.fetch())

    def fetch_config(self) -> RepositoryConfig | None:
        return self.fetch().config

    def fetch_ops_log(self) -> Iterator[OpsLogEntry]:
        """Yield the log from ``repo`` and its backups, up to the first missing backup."""
        info, seen = self.fetch(), set[str]()
        yield from info.latest_updates
        while True:
            backup = info.repo_before_updates
            if backup is None:
                return
            key = OVERWRITTEN + backup
            if key in seen:
                raise FormatError("the ops log has a cycle", file=key)
            seen.add(key)
            try:
                info = decode_repo_info(fetch_file(self._storage, key).data, key)
            except ObjectNotFoundError:
                return
            # The newest entry in a backup was written before the backup had a name.
            yield from (replace(entry, backup_path=backup) for entry in info.latest_updates[:1])
            yield from info.latest_updates[1:]

    def fetch_metadata(self) -> Mapping[str, Any]:
        return self.fetch().metadata

    def fetch_status(self) -> RepoStatus:
        return self.fetch().status

    def require_online(self) -> None:
        changes.require_online(self.fetch())

    def fetch_feature_flags(self) -> list[FeatureFlag]:
        info = self.fetch()
        return [info.get_feature_flag(flag) for flag in FEATURE_FLAGS]

    def commit(self, branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> None:
        self._commit(branch, parent, snapshot)

    def begin_commit(self, branch: str, parent: SnapshotId) -> Callable[[SnapshotInfo], None]:
        current = self._fetch()
        changes.require_online(current[0])
        changes.require_tip(current[0], branch, parent)
        return lambda snapshot: self._commit(branch, parent, snapshot, current)

    def _commit(
        self,
        branch: str,
        parent: SnapshotId,
        snapshot: SnapshotInfo,
        current: tuple[RepoInfo, Version] | None = None,
    ) -> None:
        ref_errors.require_parent(snapshot, parent)
        self.change(lambda info: changes.commit(info, branch, parent, snapshot), current=current)

    def amend(self, branch: str, previous: SnapshotId, snapshot: SnapshotInfo) -> None:
        self.change(lambda info: changes.amend(info, branch, previous, snapshot))

    def add_snapshot(self, snapshot: SnapshotInfo) -> None:
        parent = snapshot.parent_id
        if parent is None:
            raise InvalidInputError(
                f"snapshot {snapshot.id} has no parent: only the first snapshot may have none",
                kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
            )
        self.change(lambda info: changes.add_snapshot(info, snapshot, parent))

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

    def expire_snapshots(self, policy: ExpirationPolicy) -> frozenset[SnapshotId]:
        expired: frozenset[SnapshotId] = frozenset()

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

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        self.change(lambda info: changes.set_config(info, config, expected))

    def save_metadata(self, metadata: Mapping[str, Any]) -> None:
        encoded = self.generation.codec.encode_metadata(metadata)
        self.change(lambda info: (MetadataChanged(), replace(info, metadata=dict(encoded))))

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        encoded = self.generation.codec.encode_metadata(metadata)
        return self.change(
            lambda info: (MetadataChanged(), replace(info, metadata={**info.metadata, **encoded}))
        ).metadata

    def save_status(self, status: RepoStatus) -> None:
        changes.require_status(status)
        self.change(
            lambda info: (RepoStatusChanged(status), replace(info, status=status)),
            in_any_status=True,
        )

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        flag = changes.find_feature_flag(name, setting)
        self.change(lambda info: changes.set_feature_flag(info, flag, setting))

    def change(
        self,
        change: Change,
        *,
        in_any_status: bool = False,
        current: tuple[RepoInfo, Version] | None = None,
    ) -> RepoInfo:
        """Apply a change and return the new state; retry after conflicts.

        ``current`` is the state for the first attempt, if the caller has read it already.
        """
        for attempt in itertools.count():
            (info, version), current = current or self._fetch(), None
            config = RepositoryConfig() if info.config is None else info.config
            retries = config.effective_repo_update_retries.effective_default
            if attempt >= retries.effective_max_tries:
                break
            if not in_any_status:
                changes.require_online(info)
            kind, new_info = change(info)
            now = datetime.now(UTC)
            backup = _make_backup_name(now)
            updated = changes.record(
                new_info,
                kind,
                now=now,
                backup_path=backup,
                max_updates=config.effective_num_updates_per_repo_info_file,
            )
            if self._replace(updated, version, backup):
                return updated
            if attempt >= _IMMEDIATE_TRIES:
                initial_s = retries.effective_initial_backoff_ms / 1000
                max_s = retries.effective_max_backoff_ms / 1000
                time.sleep(compute_backoff_s(attempt - _IMMEDIATE_TRIES + 1, initial_s, max_s))
        raise ConflictError(
            f"{self._storage.url}: other writers changed the repository during each of {attempt} "
            "attempts; try again, or raise repo_update_retries",
            kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
        )

    def _fetch(self) -> tuple[RepoInfo, Version]:
        try:
            fetched = fetch_file(self._storage, REPO)
        except ObjectNotFoundError as error:
            raise ref_errors.deleted_repository_error(self._storage.url) from error
        return decode_repo_info(fetched.data, REPO), fetched.info.version

    def _replace(self, info: RepoInfo, version: Version, backup: str) -> bool:
        data = encode_repo_info(info)  # before the copy: an error must not leave a backup behind
        # If another writer replaces `repo` before the copy, the put below fails and nothing refers
        # to this backup. So every backup that is referred to is the state that was read.
        self._storage.copy(REPO, OVERWRITTEN + backup)
        try:
            change_counter.increment()
            self._storage.put(REPO, data, UpdateIfMatch(version))
        except PreconditionFailedError:
            return False
        except OutcomeUnknownError:
            # The log of every later state contains the name of this backup.
            if self._is_in_history(backup):
                return True
            raise
        return True

    def _is_in_history(self, backup: str) -> bool:
        info, _ = self._fetch()
        paths = [update.backup_path for update in info.latest_updates]
        return backup in (*paths, info.repo_before_updates)


def _make_backup_name(now: datetime) -> str:
    countdown = _FAR_FUTURE_MS - int(now.timestamp() * 1000)
    return f"repo.{countdown:014d}.{SnapshotId.random()}"
