"""The refs of generation v2: the object ``repo`` (schema `repo.fbs`) and its backups.

A change backs up the old object in ``overwritten/`` before it replaces it by compare-and-swap: a
get and two puts, or a get, a copy and a put if the object is large.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from icefloe.assets import Assets, fetch_file, fetch_file_if_changed
from icefloe.errors import (
    ErrorKind,
    FormatError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.generation import V2
from icefloe.format.keys import OVERWRITTEN, REPO
from icefloe.format.repo_info import decode_repo_info, encode_repo_info, rewrite_repo_info
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import (
    FEATURE_FLAGS,
    ExpirationRan,
    GCRan,
    MetadataChanged,
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoInitialized,
    RepoStatus,
    RepoStatusChanged,
)
from icefloe.model.transaction_log import TransactionLog
from icefloe.refs import change_counter, changes, ref_errors
from icefloe.refs.history import walk_history
from icefloe.refs.names import MAIN
from icefloe.refs.ops_log_reconstruction import reconstruct_ops_log
from icefloe.refs.repeated_creation import create_or_compare
from icefloe.refs.single_object import Current, SingleObjectRefs
from icefloe.storage.clock import find_lead
from icefloe.storage.interface import Create, Fresh, UpdateIfMatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from icefloe.model.ids import NodeId
    from icefloe.model.repo_info import FeatureFlag, UpdateType
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.model.storage_settings import StorageRetriesSettings
    from icefloe.refs.changes import ChangeResult
    from icefloe.refs.commit_check import CommitCheck
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage

# Backups sort newest first: their names count down from the year 3000, in milliseconds.
_FAR_FUTURE_MS = 32_503_680_000_000
_MAX_UPLOADED_BACKUP = 128 << 10

_MAKING_ROOM = (ExpirationRan, GCRan)
"""Changes that are made without a backup if the disk is full."""

_LOGGER = logging.getLogger(__name__)


class RepoFile(SingleObjectRefs[Current]):
    """Reads and changes ``repo``; each read is one request, except the ops log.

    The last state that was read or written is kept, so that a read of the same version transfers
    and decodes nothing.
    """

    generation = V2
    _last: Current | None = None
    _last_data: bytes | memoryview = b""  # encoded

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

    def fetch_config(self) -> RepositoryConfig | None:
        config = self.fetch().config
        return None if config is None else config.copy()

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

    def fetch_feature_flags(self) -> list[FeatureFlag]:
        info = self.fetch()
        return [info.get_feature_flag(flag) for flag in FEATURE_FLAGS]

    def amend(
        self,
        branch: str,
        previous: SnapshotId,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        self.change(lambda info: changes.amend(info, branch, previous, snapshot), check=check)

    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        self.change(lambda info: changes.set_config(info, config, expected))

    def save_metadata(self, metadata: Mapping[str, Any]) -> None:
        encoded = self.generation.codec.encode_metadata(metadata)
        self.change(lambda info: (MetadataChanged(), replace(info, metadata=encoded)))

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        encode = self.generation.codec.encode_metadata
        encoded = encode(metadata)

        def change(info: RepoInfo) -> ChangeResult:
            merged = encode({**info.metadata, **encoded})
            return MetadataChanged(), replace(info, metadata=merged)

        return self.change(change).metadata

    def save_status(self, status: RepoStatus) -> None:
        changes.require_status(status)
        self.change(
            lambda info: (RepoStatusChanged(status), replace(info, status=status)),
            in_any_status=True,
        )

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        flag = changes.find_feature_flag(name, setting)
        self.change(lambda info: changes.set_feature_flag(info, flag, setting))

    def _run_check(self, check: CommitCheck, info: RepoInfo) -> None:
        check.check_log(info)

    def _fetch_update_retries(self, info: RepoInfo) -> StorageRetriesSettings:
        return _get_config(info).effective_repo_update_retries.effective_default

    def _fetch(self) -> Current:
        known = self._last
        try:
            fetched = (
                fetch_file(self._storage, REPO)
                if known is None
                else fetch_file_if_changed(self._storage, REPO, known.version)
            )
        except ObjectNotFoundError as error:
            raise ref_errors.deleted_repository_error(REPO, self._storage.url) from error
        if fetched is None:
            assert known is not None  # noqa: S101 - for type checkers
            return known
        self._last = Current(decode_repo_info(fetched.data, REPO), fetched.info.version)
        self._last_data = fetched.data
        return self._last

    def _replace(self, current: Current, kind: UpdateType, info: RepoInfo) -> RepoInfo | None:
        backup = _make_backup_name(datetime.now(UTC))
        try:
            return self._replace_and_record(current, kind, info, backup)
        except StorageError as error:
            if error.kind is not ErrorKind.DISK_FULL or not isinstance(kind, _MAKING_ROOM):
                raise
            _LOGGER.warning("%s changes without a backup: %s", self._storage.url, error)
        self._storage.delete_many([OVERWRITTEN + backup])
        return self._replace_and_record(current, kind, info, backup, has_backup=False)

    def _replace_and_record(
        self,
        current: Current,
        kind: UpdateType,
        info: RepoInfo,
        backup: str,
        *,
        has_backup: bool = True,
    ) -> RepoInfo | None:
        # Without a backup, no entry may leave the log.
        max_updates = (
            _get_config(current.info).effective_num_updates_per_repo_info_file
            if has_backup
            else sys.maxsize
        )

        def encode(lead: timedelta) -> tuple[RepoInfo, bytes]:
            now = datetime.now(UTC) - lead
            return rewrite_repo_info(
                changes.record(info, kind, now=now, backup_path=backup, max_updates=max_updates)
            )

        # Before the copy: an error must not leave a backup behind.
        updated, data = encode(timedelta(0))
        # If another writer replaces `repo` before the copy, the put below fails and nothing refers
        # to this backup. So every backup that is referred to is the state that was read.
        if has_backup:
            self._back_up(current, OVERWRITTEN + backup)
        # Icechunk makes no change until the time of the last one has passed.
        if lead := find_lead(self._storage, OVERWRITTEN + backup if has_backup else None):
            updated, data = encode(lead)
        try:
            change_counter.increment()
            version = self._storage.put(REPO, data, UpdateIfMatch(current.version))
        except PreconditionFailedError:
            return None
        except OutcomeUnknownError:
            # The log of every later state contains the name of this backup.
            if self._is_in_history(backup):
                return updated
            raise
        self._last, self._last_data = Current(updated, version), data
        return updated

    def _back_up(self, current: Current, key: str) -> None:
        # A server takes longer to copy a small object than to receive it.
        if current is self._last and len(self._last_data) <= _MAX_UPLOADED_BACKUP:
            self._storage.put(key, self._last_data, Fresh())
        else:
            self._storage.copy(REPO, key)

    def _is_in_history(self, backup: str) -> bool:
        info = self._fetch().info
        paths = [update.backup_path for update in info.latest_updates]
        return backup in (*paths, info.repo_before_updates)


def _get_config(info: RepoInfo) -> RepositoryConfig:
    return RepositoryConfig() if info.config is None else info.config


def _make_backup_name(now: datetime) -> str:
    countdown = _FAR_FUTURE_MS - int(now.timestamp() * 1000)
    return f"repo.{countdown:014d}.{SnapshotId.random()}"
