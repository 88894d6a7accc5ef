"""Repositories: creating and opening them, their history, branches and tags, and sessions."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from icefloe.async_twins import async_twins
from icefloe.connection import Connection
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    ObjectNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.keys import CONFIG, snapshot_key, transaction_log_key
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.model.repo_info import MOVE_NODE
from icefloe.preload import start_preload
from icefloe.refs.creation import create_refs
from icefloe.refs.opening import fetch_spec_version, open_refs
from icefloe.session import Session
from icefloe.snapshots import ManifestFileInfo, SnapshotInfo
from icefloe.transaction.diff import diff_across_history, diff_along_history
from icefloe.types import SessionMode, SpecVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import datetime

    from icefloe.conflicts import ConflictSolver
    from icefloe.model.repo_info import FeatureFlag, RepoStatus
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.refs.interface import Refs
    from icefloe.refs.opening import Opened
    from icefloe.snapshots import Diff
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import Storage
    from icefloe.store import IcechunkStore
    from icefloe.types import CommitMethod

    Credentials = Mapping[str, AnyCredential | None]

__all__ = ["Repository"]

# For so long what opening read serves the first reader: enough for the next line of a program, too
# short for anybody to have heard of a newer commit in the meantime.
_JUST_OPENED_S = 0.05

default_spec_version = SpecVersion.v1
"""What `Repository.create` makes when it is not told: what every Icechunk reader opens."""


@async_twins(
    "create",
    "open",
    "open_or_create",
    "exists",
    "fetch_spec_version",
    "fetch_config",
    "save_config",
    "reopen",
    "get_metadata",
    "set_metadata",
    "update_metadata",
    "get_status",
    "set_status",
    "feature_flags",
    "enabled_feature_flags",
    "disabled_feature_flags",
    "set_feature_flag",
    "create_branch",
    "list_branches",
    "lookup_branch",
    "lookup_snapshot",
    "list_manifest_files",
    "reset_branch",
    "delete_branch",
    "delete_tag",
    "create_tag",
    "list_tags",
    "lookup_tag",
    "diff",
    "readonly_session",
    "writable_session",
    "rearrange_session",
    "rewrite_manifests",
)
class Repository:
    """A versioned Zarr hierarchy at one place.

    Make one with `create`, `open` or `open_or_create`.
    """

    def __init__(self, connection: Connection, opened: Opened) -> None:
        self._connection = connection
        self._persisted_config = opened.config
        self._at_opening: Refs | None = opened.at_opening.with_assets(connection.assets)
        self._opened_at = time.monotonic()

    # -- creating and opening

    @classmethod
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - Icechunk's signature
    ) -> Self:
        """Create a repository where there is none.

        Parameters
        ----------
        storage
            The place.
        config
            Settings that are stored with the repository.
        authorize_virtual_chunk_access
            Which virtual chunk containers may be read, by URL prefix, and with which credentials.
        spec_version
            The version of the format: 1, which every reader opens, or 2.
        check_clean_root
            Whether a place that holds other files is refused.

        Raises
        ------
        AlreadyExistsError
            If there is a repository, or something else.
        """
        if check_clean_root:
            _require_clean(storage)
        version = default_spec_version if spec_version is None else int(spec_version)
        given = None if config is None or config == RepositoryConfig() else config.copy()
        create_refs(storage, spec_version=version, config=given)
        return cls.open(storage, config, authorize_virtual_chunk_access)

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
    ) -> Self:
        """Open a repository.

        ``config`` is laid over what the repository persists, for this process alone.

        Raises
        ------
        RepositoryNotFoundError
            If there is none.
        """
        opened = open_refs(storage)
        merged = RepositoryConfig(storage=storage.default_settings())
        merged = merged.merge(opened.config or RepositoryConfig())
        merged = merged.merge(config or RepositoryConfig())
        connection = Connection(
            storage.with_settings(merged.effective_storage),
            opened.refs.spec_version,
            merged,
            authorize_virtual_chunk_access or {},
        )
        return cls(connection, opened)

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - Icechunk's signature
    ) -> Self:
        """Open the repository at a place, or create one; of several who create, one does."""
        if not cls.exists(storage):
            try:
                return cls.create(
                    storage,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    check_clean_root,
                )
            except AlreadyExistsError:
                if not cls.exists(storage):
                    raise
        return cls.open(storage, config, authorize_virtual_chunk_access)

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether there is a repository at a place."""
        return Repository.fetch_spec_version(storage, storage_settings) is not None

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """Tell the version of the format of the repository at a place, None if there is none."""
        place = storage if storage_settings is None else storage.with_settings(storage_settings)
        version = fetch_spec_version(place)
        return None if version is None else SpecVersion(version)

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """Fetch the configuration that a repository persists, None if it has none."""
        return open_refs(storage).config

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
    ) -> Self:
        """Open the same repository with other settings; what is in memory is shared."""
        merged = self._connection.config.merge(config or RepositoryConfig())
        credentials = authorize_virtual_chunk_access
        connection = Connection(
            self._connection.storage.with_settings(merged.effective_storage),
            self._connection.spec_version,
            merged,
            self._connection.credentials if credentials is None else credentials,
            default_commit_metadata=self._connection.default_commit_metadata,
            assets=self._connection.assets,
        )
        again = object.__new__(type(self))
        again._connection = connection
        again._persisted_config = self._persisted_config
        again._at_opening = None
        again._opened_at = 0.0
        return again

    # -- what it is

    @property
    def config(self) -> RepositoryConfig:
        """The configuration that applies; a copy."""
        return self._connection.config.copy()

    @property
    def storage(self) -> Storage:
        """Where the repository is."""
        return self._connection.storage

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format."""
        return SpecVersion(self._connection.spec_version)

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The URL prefixes whose virtual chunks may be read."""
        return self._connection.virtual.authorized_prefixes

    def __repr__(self) -> str:
        return f"<Repository {self.storage.url}, format v{self._connection.spec_version}>"

    def save_config(self) -> None:
        """Persist the configuration that applies, for everybody who opens the repository.

        Raises
        ------
        ConflictError
            If somebody else saved one since this repository was opened.
        """
        defaults = self.storage.default_settings()
        config = self._connection.config.copy()
        if config.storage == defaults:
            config.storage = None
        self._connection.refs.save_config(config, expected=self._persisted_config)
        self._persisted_config = config

    def set_default_commit_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set what every commit of this process records besides its own metadata."""
        self._connection.default_commit_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """Return what every commit of this process records besides its own metadata."""
        return dict(self._connection.default_commit_metadata)

    def get_metadata(self) -> dict[str, Any]:
        """Fetch the repository's own metadata (version 2)."""
        return dict(self._connection.refs.fetch_metadata())

    @property
    def metadata(self) -> dict[str, Any]:
        """The repository's own metadata (version 2)."""
        return self.get_metadata()

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the repository's own metadata (version 2)."""
        self._connection.refs.save_metadata(metadata)

    def update_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some keys of the repository's own metadata, and return all of it (version 2)."""
        return dict(self._connection.refs.update_metadata(metadata))

    def get_status(self) -> RepoStatus:
        """Fetch whether the repository takes changes (version 2)."""
        return self._connection.refs.fetch_status()

    @property
    def status(self) -> RepoStatus:
        """Whether the repository takes changes (version 2)."""
        return self.get_status()

    def set_status(self, status: RepoStatus) -> None:
        """Set whether the repository takes changes (version 2)."""
        self._connection.refs.save_status(status)

    def feature_flags(self) -> list[FeatureFlag]:
        """Fetch what the repository allows (version 2)."""
        return self._connection.refs.fetch_feature_flags()

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """Fetch what is allowed (version 2)."""
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """Fetch what is forbidden (version 2)."""
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Allow or forbid something, None for its default (version 2)."""
        self._connection.refs.set_feature_flag(name, setting)

    # -- branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch."""
        self._connection.refs.create_branch(branch, SnapshotId.parse(snapshot_id))

    def list_branches(self) -> set[str]:
        """Return the names of all branches."""
        return set(self._connection.refs.fetch_branches())

    def lookup_branch(self, branch: str) -> str:
        """Return the snapshot that a branch points at."""
        return str(self._connection.refs.fetch_branch(branch))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Let a branch point at another snapshot.

        With ``from_snapshot_id`` only if it points there now; `ConflictError` if it does not.
        """
        expected = None if from_snapshot_id is None else SnapshotId.parse(from_snapshot_id)
        target = SnapshotId.parse(snapshot_id)
        self._connection.refs.reset_branch(branch, target, expected=expected)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch, any but main; its snapshots stay until they are collected."""
        self._connection.refs.delete_branch(branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Create a tag; its name must never have been used."""
        self._connection.refs.create_tag(tag, SnapshotId.parse(snapshot_id))

    def list_tags(self) -> set[str]:
        """Return the names of all tags."""
        return set(self._connection.refs.fetch_tags())

    def lookup_tag(self, tag: str) -> str:
        """Return the snapshot that a tag points at."""
        return str(self._connection.refs.fetch_tag(tag))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name can never be used again."""
        self._connection.refs.delete_tag(tag)

    # -- history

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, newest first."""
        refs = self._connection.refs.pinned()
        start = self._resolve(refs, branch, tag, snapshot_id)
        return (SnapshotInfo.of(info) for info in refs.fetch_ancestry(start))

    async def async_ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncIterator[SnapshotInfo]:
        """Do as `ancestry`, without keeping the event loop from others."""
        infos = self.ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)
        while (info := await asyncio.to_thread(next, infos, None)) is not None:
            yield info

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Return what history says of a snapshot."""
        return SnapshotInfo.of(
            self._connection.refs.fetch_snapshot_info(SnapshotId.parse(snapshot_id))
        )

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """Return the manifest files that a snapshot needs."""
        snapshot = self._fetch_tree(SnapshotId.parse(snapshot_id)).snapshot
        return [
            ManifestFileInfo(str(info.id), info.size_bytes, info.num_chunk_refs)
            for info in snapshot.manifest_files
        ]

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """Tell what changed from one snapshot to another, from the transaction logs between them.

        The second need not descend from the first: then the way leads over their last common
        ancestor.
        """
        refs = self._connection.refs.pinned()
        before = self._resolve(refs, from_branch, from_tag, from_snapshot_id)
        after = self._resolve(refs, to_branch, to_tag, to_snapshot_id)
        newer, older = [], []
        ancestors = {info.id: info for info in refs.fetch_ancestry(before)}
        for info in refs.fetch_ancestry(after):
            if info.id in ancestors:
                break
            newer.append(info)
        else:
            raise InvalidInputError(
                f"snapshots {before} and {after} have no common ancestor",
                kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
        for ancestor in ancestors.values():
            if ancestor.id == info.id:
                break
            older.append(ancestor)
        ids = [
            log_id
            for one in (*reversed(newer), *older)
            for log_id in (*one.pruned_ancestor_tx_logs, one.id)
        ]
        assets = self._connection.assets
        logs = assets.all_at_once(assets.fetch_transaction_log, ids)
        sides = self._fetch_tree(before).by_id, self._fetch_tree(after).by_id
        return (diff_across_history if older else diff_along_history)(logs, *sides)

    # -- sessions

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """Read a branch's tip, a tag, a snapshot, or a branch as it was at a time."""
        refs = self._connection.refs
        just_opened, self._at_opening = self._at_opening, None
        if just_opened is not None and time.monotonic() - self._opened_at < _JUST_OPENED_S:
            refs = just_opened
        if as_of is None:
            target = self._resolve(refs, branch, tag, snapshot_id)
        else:
            target = self._resolve_time(refs, branch, tag, snapshot_id, as_of)
        return self._session(target, SessionMode.readonly, None)

    def writable_session(self, branch: str) -> Session:
        """Begin to write on a branch."""
        tip = self._connection.refs.fetch_branch(branch)
        return self._session(tip, SessionMode.writable, branch)

    def rearrange_session(self, branch: str) -> Session:
        """Begin to move nodes on a branch."""
        refs = self._connection.refs.pinned()
        if self._connection.spec_version > 1:
            flags = {flag.id: flag for flag in refs.fetch_feature_flags()}
            if not flags[MOVE_NODE.id].enabled:
                raise SessionStateError(
                    f"this repository forbids moving nodes: the feature flag {MOVE_NODE.name!r} "
                    "is off; see Repository.set_feature_flag",
                    kind=ErrorKind.FEATURE_FLAG_DISABLED,
                )
        return self._session(refs.fetch_branch(branch), SessionMode.rearrange, branch)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
    ) -> Iterator[IcechunkStore]:
        """Write through a store that is committed at the end of the block, unless it raises."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
    ) -> str:
        """Make all manifests anew, by the rules for splitting that apply now."""
        return self.writable_session(branch).rewrite_manifests(
            message, metadata, commit_method=commit_method
        )

    # -- inside

    def _session(self, snapshot_id: SnapshotId, mode: SessionMode, branch: str | None) -> Session:
        tree = self._fetch_tree(snapshot_id)
        preload = self._connection.config.effective_manifest.effective_preload
        start_preload(self._connection.assets, tree, preload)
        return Session(self._connection, snapshot_id, mode=mode, branch=branch)

    def _fetch_tree(self, snapshot_id: SnapshotId) -> Any:
        try:
            return self._connection.assets.fetch_tree(snapshot_id)
        except ObjectNotFoundError as error:
            raise SnapshotNotFoundError(
                f"there is no snapshot {snapshot_id} in {self.storage.url}"
            ) from error

    def _resolve(
        self, refs: Refs, branch: str | None, tag: str | None, snapshot_id: str | None
    ) -> SnapshotId:
        if [branch, tag, snapshot_id].count(None) != 2:
            raise InvalidInputError(
                "say which snapshot: exactly one of branch, tag and snapshot_id",
                kind=ErrorKind.INVALID_REF_TYPE,
            )
        if branch is not None:
            return refs.fetch_branch(branch)
        if tag is not None:
            return refs.fetch_tag(tag)
        return SnapshotId.parse(str(snapshot_id))

    def _resolve_time(
        self,
        refs: Refs,
        branch: str | None,
        tag: str | None,
        snapshot_id: str | None,
        as_of: datetime,
    ) -> SnapshotId:
        if branch is None or tag is not None or snapshot_id is not None:
            raise InvalidInputError(
                "as_of looks back along a branch: pass branch, and neither tag nor snapshot_id",
                kind=ErrorKind.INVALID_REF_TYPE,
            )
        if as_of.tzinfo is None:
            raise InvalidInputError(
                f"as_of={as_of.isoformat()} has no time zone: write "
                "datetime(..., tzinfo=timezone.utc)",
                kind=ErrorKind.INVALID_REF_TYPE,
            )
        for info in refs.fetch_ancestry(refs.fetch_branch(branch)):
            if info.flushed_at <= as_of:
                return info.id
        raise NotFoundError(
            f"branch {branch!r} begins after {as_of.isoformat()}",
            kind=ErrorKind.NO_SNAPSHOT_AT_TIME,
        )


def _require_clean(storage: Storage) -> None:
    """Refuse a place that holds something else; what a creator left who died is fine."""
    leftovers = {
        CONFIG,
        snapshot_key(INITIAL_SNAPSHOT_ID),
        transaction_log_key(INITIAL_SNAPSHOT_ID),
    }
    try:
        found = next((info.key for info in storage.list() if info.key not in leftovers), None)
    except StorageError:
        return  # not everybody may list, and creation itself is safe
    if found is not None:
        raise AlreadyExistsError(
            f"{storage.url} is not empty (there is {found!r}): choose another place, open the "
            "repository if it is one, or pass check_clean_root=False",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
