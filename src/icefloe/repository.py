"""Repositories: creating and opening them, their history, branches and tags, and sessions."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from icefloe import __version__, display
from icefloe.assets import fetch_file
from icefloe.compat.async_twins import async_twins
from icefloe.compat.default_version import get_default_spec_version
from icefloe.containers.authorization import warn_about_untyped_access
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.keys import CONFIG, REPO, manifest_key, snapshot_key, transaction_log_key
from icefloe.format.metadata import encode_metadata
from icefloe.inspection import inspect_dicts
from icefloe.inspection.ancestry import fetch_commits
from icefloe.maintenance.dependents import count_dependencies, find_dependents
from icefloe.maintenance.garbage_collection import collect_garbage
from icefloe.maintenance.limits import ReadLimits, require_positive
from icefloe.maintenance.statistics import measure_chunks
from icefloe.maintenance.sweep import DeleteLimits
from icefloe.maintenance.times import require_time_zone
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, ManifestId, SnapshotId
from icefloe.model.repo_info import MOVE_NODE
from icefloe.ops import Update
from icefloe.refs import own_changes
from icefloe.refs.creation import create_refs
from icefloe.refs.opening import fetch_spec_version, open_refs
from icefloe.refs.retention import ExpirationPolicy
from icefloe.session import Session
from icefloe.session.connection import Connection
from icefloe.snapshots import AncestryGraph, ManifestFileInfo, SnapshotInfo
from icefloe.storage.interface import Storage
from icefloe.transaction.diff import diff_across_history, diff_along_history
from icefloe.transaction.preload import start_preload
from icefloe.types import SessionMode, SpecVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import datetime

    from icefloe.conflicts import ConflictSolver
    from icefloe.containers.authorization import ContainerAccess
    from icefloe.containers.dependencies import Dependencies, Dependents
    from icefloe.maintenance.statistics import ChunkStorageStats
    from icefloe.maintenance.sweep import GCSummary
    from icefloe.model.attribution import Attribution
    from icefloe.model.repo_info import FeatureFlag, RepoStatus
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.refs.interface import Refs
    from icefloe.refs.opening import OpenedRefs
    from icefloe.snapshots import Diff
    from icefloe.storage.credentials import AnyCredential
    from icefloe.store import IcechunkStore
    from icefloe.types import CommitMethod

    Credentials = Mapping[str, AnyCredential | None]

__all__ = ["Repository"]

_LOGGER = logging.getLogger(__name__)

# For so long what opening read serves the first reader, unless this process changed something: long
# enough for the next line of a program, too short to have heard of a newer commit from elsewhere.
_JUST_OPENED_S = 0.01


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
    "expire_snapshots",
    "garbage_collect",
    "chunk_storage_stats",
    "total_chunks_storage",
    "dependencies",
    "find_dependents",
    "ancestry_graph",
    "inspect_snapshot",
    "inspect_repo_info",
    "inspect_manifest",
    "inspect_transaction_log",
)
class Repository:
    """A versioned Zarr hierarchy at one place.

    Make one with `create`, `open` or `open_or_create`.
    """

    def __init__(self, connection: Connection, opened: OpenedRefs) -> None:
        self._connection = connection
        self._persisted_config = opened.config
        self._at_opening: Refs | None = opened.at_opening.with_assets(connection.assets)
        self._opened_at = time.monotonic()
        self._changes_at_opening = own_changes.count()
        self._attribution: Attribution | None = None

    # -- creating and opening

    @classmethod
    def create(  # noqa: PLR0917 - Icechunk's signature
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - Icechunk's signature
        attribution: Attribution | None = None,
    ) -> Self:
        """Create a repository where there is none.

        Parameters
        ----------
        storage
            The place.
        config
            Settings that are stored with the repository.
        authorize_virtual_chunk_access
            Which virtual chunk containers may be read, by URL prefix or name, and with which
            credentials. Those on the repository's own remote platform need not be named; an empty
            mapping forbids them as well.
        spec_version
            The version of the format: 1, which every reader opens, or 2.
        check_clean_root
            Whether a place that holds other files is refused.
        attribution
            Labels for the ``User-Agent`` of all requests.

        Raises
        ------
        AlreadyExistsError
            If there is a repository, or something else.
        """
        place = _with_attribution(storage, attribution)
        _require_config(config)
        if check_clean_root:
            _require_clean(place)
        version = get_default_spec_version() if spec_version is None else SpecVersion(spec_version)
        given = None if config is None or config == RepositoryConfig() else config.copy()
        create_refs(place, spec_version=version, config=given)
        _LOGGER.info("created %s, spec version %d", place.url, version)
        return cls.open(storage, config, authorize_virtual_chunk_access, attribution)

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        attribution: Attribution | None = None,
    ) -> Self:
        """Open a repository.

        ``config`` is laid over what the repository persists, for this process alone.

        Raises
        ------
        RepositoryNotFoundError
            If there is none.
        """
        warn_about_untyped_access(authorize_virtual_chunk_access)
        storage = _with_attribution(storage, attribution)
        _require_config(config)
        opened = open_refs(storage)
        merged = RepositoryConfig(storage=storage.default_settings())
        merged = merged.merge(opened.config or RepositoryConfig())
        merged = merged.merge(config or RepositoryConfig())
        connection = Connection(
            storage.with_settings(merged.effective_storage),
            opened.refs.spec_version,
            merged,
            authorize_virtual_chunk_access,
        )
        repository = cls(connection, opened)
        repository._attribution = attribution
        _LOGGER.debug("opened %s, spec version %d", storage.url, connection.spec_version)
        return repository

    @classmethod
    def open_or_create(  # noqa: PLR0917 - Icechunk's signature
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - Icechunk's signature
        attribution: Attribution | None = None,
    ) -> Self:
        """Open the repository at a place, or create one; of several who create, one does."""
        place = _with_attribution(storage, attribution)
        if not cls.exists(place):
            try:
                return cls.create(
                    storage,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    check_clean_root,
                    attribution,
                )
            except AlreadyExistsError:
                if not cls.exists(place):
                    raise
        return cls.open(storage, config, authorize_virtual_chunk_access, attribution)

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether there is a repository at a place."""
        return Repository.fetch_spec_version(storage, storage_settings) is not None

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """Tell the version of the format of the repository at a place, None if there is none."""
        _require_storage(storage)
        place = storage if storage_settings is None else storage.with_settings(storage_settings)
        version = fetch_spec_version(place)
        return None if version is None else SpecVersion(version)

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """Fetch the configuration that a repository persists, None if it has none."""
        _require_storage(storage)
        return open_refs(storage).config

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
    ) -> Self:
        """Open the same repository with other settings; what is in memory is shared."""
        warn_about_untyped_access(authorize_virtual_chunk_access)
        _require_config(config)
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
        again._changes_at_opening = 0
        again._attribution = self._attribution
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
    def attribution(self) -> Attribution | None:
        """The labels that go along with all requests."""
        return self._attribution

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format."""
        return SpecVersion(self._connection.spec_version)

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The URL prefixes whose virtual chunks may be read."""
        return self._connection.virtual.authorized_prefixes

    def list_virtual_chunk_containers(self) -> list[ContainerAccess]:
        """List the containers of virtual chunks, and which of them can be read as it is open now.

        No requests: this tells whom to trust, and with what, before anything is read.
        """
        return self._connection.virtual.containers()

    def __repr__(self) -> str:
        return f"<Repository {self.storage.url}, format v{self._connection.spec_version}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_at_opening": None}  # it is long ago where this arrives

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        prefixes = sorted(self.authorized_virtual_container_prefixes)
        return display.repository_html(
            self.storage.url,
            self._connection.spec_version,
            read_only=self.storage.read_only,
            refs=self._names_if_cheap(),
            virtual_prefixes=prefixes,
            config=self._connection.config,
        )

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
        encode_metadata(metadata, self._connection.spec_version)  # or every commit would fail
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
        refs = self._connection.refs.pin()
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

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """Draw the history of all branches and tags, or of one snapshot.

        Print it, or let a notebook show it. ``plain`` does without colours.
        """
        refs = self._connection.refs.pin()
        if branch is None and tag is None and snapshot_id is None:
            return AncestryGraph(fetch_commits(refs), plain=plain)
        start = self._resolve(refs, branch, tag, snapshot_id)
        return AncestryGraph(fetch_commits(refs, start), plain=plain)

    def ops_log(self) -> Iterator[Update]:
        """Yield what was done to the repository, newest first (version 2)."""
        return map(Update.of, self._connection.refs.fetch_ops_log())

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """Do as `ops_log`, without keeping the event loop from others."""
        updates = self.ops_log()
        while (update := await asyncio.to_thread(next, updates, None)) is not None:
            yield update

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
        refs = self._connection.refs.pin()
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
        logs = assets.run_concurrently(assets.fetch_transaction_log, ids)
        sides = self._fetch_tree(before).by_id, self._fetch_tree(after).by_id
        return (diff_across_history if older else diff_along_history)(logs, *sides)

    # -- looking inside

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """Describe a snapshot file: its manifests and its nodes."""
        key = snapshot_key(SnapshotId.parse(snapshot_id))
        return inspect_dicts.inspect_snapshot(fetch_file(self.storage, key).data, key)

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """Describe a manifest file: how many chunks of which kind each array has in it."""
        key = manifest_key(ManifestId.parse(manifest_id))
        return inspect_dicts.inspect_manifest(fetch_file(self.storage, key).data, key)

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """Describe the transaction log of a snapshot: what it changed, by the ids of nodes."""
        key = transaction_log_key(SnapshotId.parse(snapshot_id))
        return inspect_dicts.inspect_transaction_log(fetch_file(self.storage, key).data, key)

    def inspect_repo_info(self) -> dict[str, Any]:
        """Describe the repo info file (version 2)."""
        if self._connection.spec_version < 2:
            raise FormatError(
                f"{self.storage.url} has no repo info: its format is version 1",
                kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
            )
        return inspect_dicts.inspect_repo_info(fetch_file(self.storage, REPO).data, REPO)

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
        if (
            just_opened is not None
            and time.monotonic() - self._opened_at < _JUST_OPENED_S
            and own_changes.count() == self._changes_at_opening
        ):
            refs = just_opened
        if as_of is None:
            target = self._resolve(refs, branch, tag, snapshot_id)
        else:
            target = self._resolve_time(refs, branch, tag, snapshot_id, as_of)
        return self._session(target, SessionMode.readonly, None)

    def writable_session(self, branch: str) -> Session:
        """Begin to write on a branch.

        Raises
        ------
        ReadOnlyError
            If the status of the repository is read-only.
        """
        refs = self._connection.refs.pin()
        refs.require_online()
        return self._session(refs.fetch_branch(branch), SessionMode.writable, branch)

    def rearrange_session(self, branch: str) -> Session:
        """Begin to move nodes on a branch; refused as `writable_session` is."""
        refs = self._connection.refs.pin()
        refs.require_online()
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

    # -- maintenance

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> set[str]:
        """Take snapshots that are older than a time out of history; their files stay for now.

        The first snapshot and the tip of main stay, and so do the tips of other branches and tags
        unless those are deleted. Whoever reads history meanwhile may see some of it.

        Parameters
        ----------
        older_than
            Snapshots written before this time are expired.
        delete_expired_branches, delete_expired_tags
            Whether branches but main, and tags, that point at an expired snapshot are deleted.

        Returns
        -------
            The ids of the expired snapshots. In version 1 a tip that stays may be among them.
        """
        released = self._connection.refs.expire_snapshots(
            ExpirationPolicy(
                require_time_zone("older_than", older_than),
                delete_expired_branches,
                delete_expired_tags,
            )
        )
        _LOGGER.info("expired %d snapshots of %s", len(released), self.storage.url)
        if self._connection.spec_version == 1:
            self._forget()  # snapshot files were replaced
        return {str(snapshot_id) for snapshot_id in released}

    def garbage_collect(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        max_concurrent_listings: int | None = None,
    ) -> GCSummary:
        """Delete the files that no branch and no tag needs.

        What others commit meanwhile loses nothing, as long as no session is at work that began
        before ``delete_object_older_than``: what it wrote is nobody's until it is committed.

        Parameters
        ----------
        delete_object_older_than
            Younger files stay in any case.
        dry_run
            Whether files are only counted.
        max_snapshots_in_memory
            How many snapshots are read at a time.
        max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            How much memory manifests may take, as they are stored and as they are read.
        max_concurrent_manifest_fetches
            How many manifests are read at a time.
        max_concurrent_deletes
            How many requests to delete are sent at a time.
        max_consecutive_delete_failures
            After how many failed requests in a row to give up.
        max_concurrent_listings
            Has no effect: each kind of file is one listing.
        """
        require_positive(max_concurrent_listings=max_concurrent_listings)
        summary = collect_garbage(
            self._connection.storage,
            self._connection.spec_version,
            older_than=delete_object_older_than,
            dry_run=dry_run,
            read_limits=ReadLimits(
                max_snapshots_in_memory,
                max_compressed_manifest_mem_bytes,
                max_decoded_manifest_mem_bytes,
                max_concurrent_manifest_fetches,
            ),
            delete_limits=DeleteLimits(max_concurrent_deletes, max_consecutive_delete_failures),
        )
        if summary.snapshots_deleted and not dry_run:
            self._forget()
        return summary

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """Count the bytes of all chunks in the histories of branches and tags.

        The limits are those of `garbage_collect`.
        """
        return measure_chunks(
            self._connection.storage,
            self._connection.spec_version,
            limits=ReadLimits(
                max_snapshots_in_memory,
                max_compressed_manifest_mem_bytes,
                max_decoded_manifest_mem_bytes,
                max_concurrent_manifest_fetches,
            ),
        )

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Count the bytes in chunk files; deprecated, use `chunk_storage_stats`."""
        warnings.warn(
            "Repository.total_chunks_storage is deprecated: use chunk_storage_stats().native_bytes",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.chunk_storage_stats(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        ).native_bytes

    # -- what it depends on

    def dependencies(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Dependencies:
        """Count the files outside the repository that it needs, and the containers they are in.

        Of one snapshot if one is named; else of all that branches and tags have in their history,
        for which every manifest is read once. Virtual data is not read: ``unauthorized`` of the
        answer has the containers that the repository has yet to be opened for.
        """
        if branch is None and tag is None and snapshot_id is None:
            connection = self._connection
            return count_dependencies(connection.refs, connection.assets, connection.virtual)
        return self.readonly_session(branch, tag=tag, snapshot_id=snapshot_id).dependencies()

    def find_dependents(self, location: str) -> Dependents:
        """Find who refers to a file outside the repository: whether it may be deleted.

        Parameters
        ----------
        location
            The URL of the file; with ``/`` at the end, of a folder: everything below it.

        Returns
        -------
            The snapshots that refer to it, of all that branches and tags have in their history,
            and their arrays. What was written and not committed yet nobody knows of.
        """
        connection = self._connection
        return find_dependents(location, connection.refs, connection.assets, connection.virtual)

    # -- inside

    def _forget(self) -> None:
        """Begin anew with nothing in memory, for what is opened from now on."""
        self._at_opening = None
        self._connection = Connection(
            self._connection.storage,
            self._connection.spec_version,
            self._connection.config,
            self._connection.credentials,
            default_commit_metadata=self._connection.default_commit_metadata,
        )

    def _names_if_cheap(self) -> tuple[list[str], list[str]] | None:
        """Return branches and tags, unless that takes requests over a network."""
        if not self.storage.is_low_latency:
            return None
        refs = self._connection.refs.pin()
        return sorted(refs.fetch_branches()), sorted(refs.fetch_tags())

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
        require_time_zone("as_of", as_of)
        pinned = refs.pin()
        for info in pinned.fetch_ancestry(pinned.fetch_branch(branch)):
            if info.flushed_at <= as_of:
                return info.id
        raise SnapshotNotFoundError(
            f"branch {branch!r} begins after {as_of.isoformat()}",
            kind=ErrorKind.NO_SNAPSHOT_AT_TIME,
        )


def _require_storage(storage: object) -> None:
    if not isinstance(storage, Storage):
        raise InvalidInputError(
            f"a repository is in a storage, not in {storage!r:.200}: pass "
            "local_filesystem_storage(path), s3_storage(...) or storage_from_url(url)",
            kind=ErrorKind.STORAGE_CONFIG,
        )


def _require_config(config: object) -> None:
    if config is not None and not isinstance(config, RepositoryConfig):
        raise InvalidInputError(
            f"a configuration is a RepositoryConfig(...), not a {type(config).__name__}",
            kind=ErrorKind.STORAGE_CONFIG,
        )


def _with_attribution(storage: Storage, attribution: Attribution | None) -> Storage:
    _require_storage(storage)
    if attribution is None:
        return storage
    return storage.with_user_agent(attribution.user_agent(f"icefloe/{__version__}"))


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
