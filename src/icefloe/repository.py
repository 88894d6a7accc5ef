"""The repository façade: creating and opening, branches and tags, history, sessions, maintenance.

Delegates to `refs`, `session`, `inspection` and `maintenance`.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from icefloe import __version__, display
from icefloe.compat.async_twins import add_async_twins
from icefloe.compat.default_version import get_default_spec_version
from icefloe.containers.authorization import warn_about_missing_credentials
from icefloe.containers.stores import find_repository_place
from icefloe.core.snapshot_view import SnapshotView
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.generation import DRAFT, find_generation, get_generation
from icefloe.inspection import inspect_dicts
from icefloe.inspection.ancestry import fetch_commits
from icefloe.inspection.diff import fetch_diff
from icefloe.maintenance.dependents import count_dependencies, find_dependents
from icefloe.maintenance.garbage_collection import collect_garbage
from icefloe.maintenance.limits import ReadLimits, require_positive
from icefloe.maintenance.progress import ignore_progress
from icefloe.maintenance.statistics import measure_chunks
from icefloe.maintenance.sweep import DeleteLimits
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import MOVE_NODE
from icefloe.model.times import require_time_zone
from icefloe.ops import Update
from icefloe.refs.creation import create_refs, require_clean_root, require_no_repository
from icefloe.refs.lookup import find_snapshot, find_snapshot_at
from icefloe.refs.names import MAIN
from icefloe.refs.opening import RefsAtOpening, fetch_generation, fetch_spec_version, open_refs
from icefloe.refs.retention import ExpirationPolicy
from icefloe.refs.store_root import (
    add_store_root,
    get_state_storage,
    require_no_store_root,
)
from icefloe.session import Session
from icefloe.session.connection import connect
from icefloe.snapshots import AncestryGraph, ManifestFileInfo, SnapshotInfo
from icefloe.storage.clock import correct_limit
from icefloe.storage.interface import Storage
from icefloe.storage.places import HttpPlace
from icefloe.transaction.preload import start_preload
from icefloe.types import SessionMode, SpecVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import datetime

    import xarray as xr

    from icefloe.conflicts import ConflictSolver
    from icefloe.containers.authorization import ContainerAccess
    from icefloe.containers.dependencies import Dependencies, Dependents
    from icefloe.format.generation import Generation
    from icefloe.maintenance.progress import Progress
    from icefloe.maintenance.statistics import ChunkStorageStats
    from icefloe.maintenance.sweep import GCSummary
    from icefloe.model.attribution import Attribution
    from icefloe.model.repo_info import FeatureFlag, RepoStatus
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.refs.commit_check import SessionStart
    from icefloe.session.connection import Connection
    from icefloe.snapshots import Diff
    from icefloe.storage.credentials import AnyCredential
    from icefloe.store import IcechunkStore
    from icefloe.types import CommitMethod

    Credentials = Mapping[str, AnyCredential | None]

__all__ = ["Repository"]

_LOGGER = logging.getLogger(__name__)
_NUM_SHOWN_COMMITS = 5


@add_async_twins(
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
    "fetch_snapshot",
    "readonly_session",
    "writable_session",
    "rearrange_session",
    "rewrite_manifests",
    "expire_snapshots",
    "garbage_collect",
    "chunk_storage_stats",
    "dependencies",
    "find_dependents",
    "ancestry_graph",
    "inspect_snapshot",
    "inspect_repo_info",
    "inspect_manifest",
    "inspect_transaction_log",
)
class Repository:
    """A versioned Zarr hierarchy; use `create`, `open` or `open_or_create`."""

    def __init__(
        self,
        connection: Connection,
        persisted_config: RepositoryConfig | None,
        attribution: Attribution | None = None,
        opening_refs: RefsAtOpening | None = None,
    ) -> None:
        self._connection = connection
        self._persisted_config = persisted_config
        self._attribution = attribution
        self._opening_refs = opening_refs

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
        *,
        generation: str | None = None,
        store_root: Storage | None = None,
    ) -> Self:
        """Create a repository.

        Parameters
        ----------
        config
            Configuration to persist.
        authorize_virtual_chunk_access
            Credentials of the virtual chunk containers that may be read, by URL prefix or name.
            Containers on the same platform and endpoint (on Azure, also account) as the repository
            need no entry, unless the mapping is empty: then no container may be read.
        spec_version
            1 (readable by every Icechunk release) or 2; None is the default version.
        check_clean_root
            Whether to refuse a location that contains other files.
        attribution
            Labels for the ``User-Agent`` of all requests.
        generation
            Name of the generation, instead of ``spec_version``: ``v1``, ``v2``, or one that
            Icechunk does not read: ``sequence``, for storages without conditional updates, or
            ``draft``, with metadata in Parquet files.
        store_root
            Storage of all files but ``state.json`` and ``config.yaml``, if they shall be elsewhere;
            generation ``draft`` only.

        Raises
        ------
        AlreadyExistsError
            If the location contains a repository or, with ``check_clean_root``, other files.
        InvalidInputError
            If the location is a whole bucket, without a prefix.
        """
        attributed_storage = _add_store_root(storage, store_root, attribution)
        _require_config(config)
        _require_prefix(attributed_storage)
        new_generation = _choose_generation(generation, spec_version)
        require_no_store_root(attributed_storage, new_generation)
        if attributed_storage.store_root_url is not None:
            require_no_repository(get_state_storage(attributed_storage))  # of another generation
        if check_clean_root:
            require_clean_root(attributed_storage)
        custom_config = None if config is None or config == RepositoryConfig() else config.copy()
        create_refs(attributed_storage, generation=new_generation, config=custom_config)
        _LOGGER.info("created %s, generation %s", attributed_storage.url, new_generation.name)
        return cls.open(
            storage, config, authorize_virtual_chunk_access, attribution, store_root=store_root
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        attribution: Attribution | None = None,
        *,
        store_root: Storage | None = None,
    ) -> Self:
        """Open a repository.

        ``config`` is merged over the persisted configuration, for this process only. A repository
        of generation ``draft`` that was created with ``store_root`` needs that storage again.

        Raises
        ------
        RepositoryNotFoundError
            If the location contains no repository.
        """
        warn_about_missing_credentials(authorize_virtual_chunk_access)
        storage = _add_store_root(storage, store_root, attribution)
        _require_config(config)
        try:
            opened = open_refs(storage)
        except RepositoryNotFoundError:
            if storage.store_root_url is not None:
                generation = fetch_generation(get_state_storage(storage))
                require_no_store_root(storage, generation or DRAFT)
            raise
        connection = connect(storage, opened, config, authorize_virtual_chunk_access)
        _LOGGER.debug("opened %s, generation %s", storage.url, connection.generation.name)
        opening_refs = RefsAtOpening(opened.opening_refs.with_assets(connection.assets))
        return cls(connection, opened.config, attribution, opening_refs)

    @classmethod
    def open_or_create(  # noqa: PLR0917 - Icechunk's signature
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - Icechunk's signature
        attribution: Attribution | None = None,
        *,
        generation: str | None = None,
        store_root: Storage | None = None,
    ) -> Self:
        """Open a repository, or create it; safe if another process creates it concurrently.

        ``create_version`` and ``generation`` apply only if it is created.
        """
        attributed_storage = _add_attribution(storage, attribution)
        if not cls.exists(attributed_storage):
            try:
                return cls.create(
                    storage,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    check_clean_root,
                    attribution,
                    generation=generation,
                    store_root=store_root,
                )
            except AlreadyExistsError:
                if not cls.exists(attributed_storage):
                    raise
        return cls.open(
            storage, config, authorize_virtual_chunk_access, attribution, store_root=store_root
        )

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether the storage contains a repository."""
        return Repository.fetch_spec_version(storage, storage_settings) is not None

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | int | None:
        """Return the spec version of a repository, None if there is no repository.

        It is 0 for the generations ``draft`` and ``sequence``.
        """
        _require_storage(storage)
        if storage_settings is not None:
            storage = storage.with_settings(storage_settings)
        version = fetch_spec_version(storage)
        return SpecVersion(version) if version else version

    @staticmethod
    def fetch_config(
        storage: Storage, *, store_root: Storage | None = None
    ) -> RepositoryConfig | None:
        """Fetch the persisted configuration of a repository, None if it has none."""
        return open_refs(_add_store_root(storage, store_root, None)).config

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Credentials | None = None,
    ) -> Self:
        """Return this repository with ``config`` merged over its current configuration.

        The two share caches.
        """
        warn_about_missing_credentials(authorize_virtual_chunk_access)
        _require_config(config)
        connection = self._connection.with_config(
            config or RepositoryConfig(), authorize_virtual_chunk_access
        )
        return type(self)(connection, self._persisted_config, self._attribution)

    # -- properties and configuration

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the effective configuration."""
        return self._connection.config.copy()

    @property
    def storage(self) -> Storage:
        """Storage of the repository."""
        return self._connection.storage

    @property
    def attribution(self) -> Attribution | None:
        """Labels in the ``User-Agent`` of all requests."""
        return self._attribution

    @property
    def spec_version(self) -> SpecVersion | int:
        """Spec version of the repository; 0 for the generations ``draft`` and ``sequence``."""
        version = self._connection.generation.spec_version
        return SpecVersion(version) if version else version

    @property
    def generation(self) -> str:
        """Name of the generation: ``draft``, ``sequence``, ``v1`` or ``v2``."""
        return self._connection.generation.name

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """URL prefixes whose virtual chunks may be read."""
        return self._connection.virtual.authorized_prefixes

    def list_virtual_chunk_containers(self) -> list[ContainerAccess]:
        """List the virtual chunk containers, and which of them may be read, without requests."""
        return self._connection.virtual.containers()

    def __repr__(self) -> str:
        return f"<Repository {self.storage.url}, format {self._connection.generation.name}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opening_refs": None}  # would be stale after unpickling

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        prefixes = sorted(self.authorized_virtual_container_prefixes)
        return display.render_repository_html(
            self.storage.url,
            self._connection.generation.name,
            read_only=self.storage.read_only,
            refs=self._fetch_refs_if_cheap(),
            authorized_prefixes=prefixes,
            config=self._connection.config,
        )

    def save_config(self) -> None:
        """Persist the effective configuration.

        Raises
        ------
        ConflictError
            If another process saved a configuration since this repository was opened.
        """
        config = self._connection.config.copy()
        # Icechunk cannot commit with the defaults of a local disk, which has no conditional updates
        # there.
        is_local = self.storage.url.startswith("file:")
        if is_local and config.storage == self.storage.default_settings():
            config.storage = None
        self._connection.refs.save_config(config, expected=self._persisted_config)
        self._persisted_config = config

    def set_default_commit_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set metadata that is added to every commit made through this repository object.

        It is not persisted.
        """
        self._connection.generation.codec.encode_metadata(metadata)  # raise now, not at commits
        self._connection.default_commit_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """Return the metadata that is added to every commit made through this repository object."""
        return dict(self._connection.default_commit_metadata)

    def get_metadata(self) -> dict[str, Any]:
        """Fetch the metadata of the repository (spec version 2)."""
        return dict(self._connection.refs.fetch_metadata())

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the repository (spec version 2)."""
        return self.get_metadata()

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository (spec version 2)."""
        self._connection.refs.save_metadata(metadata)

    def update_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set keys of the repository metadata, and return all metadata (spec version 2)."""
        return dict(self._connection.refs.update_metadata(metadata))

    def get_status(self) -> RepoStatus:
        """Fetch the status: whether the repository accepts changes (spec version 2)."""
        return self._connection.refs.fetch_status()

    @property
    def status(self) -> RepoStatus:
        """Status of the repository (spec version 2)."""
        return self.get_status()

    def set_status(self, status: RepoStatus) -> None:
        """Set the status (spec version 2)."""
        self._connection.refs.save_status(status)

    def feature_flags(self) -> list[FeatureFlag]:
        """Fetch all feature flags (spec version 2)."""
        return self._connection.refs.fetch_feature_flags()

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """Fetch the feature flags that are enabled (spec version 2)."""
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """Fetch the feature flags that are disabled (spec version 2)."""
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Enable (True) or disable (False) a feature flag, or reset it to its default (None).

        Only spec version 2 has feature flags.
        """
        self._connection.refs.set_feature_flag(name, setting)

    # -- branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch."""
        self._connection.refs.create_branch(branch, SnapshotId.parse(snapshot_id))

    def list_branches(self) -> set[str]:
        """Return the names of all branches."""
        return self._connection.refs.fetch_branch_names()

    def lookup_branch(self, branch: str) -> str:
        """Return the id of the snapshot that a branch points at."""
        return str(self._connection.refs.fetch_branch(branch))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Move a branch to another snapshot.

        With ``from_snapshot_id``, raise `ConflictError` if the branch does not point at it.
        """
        expected = None if from_snapshot_id is None else SnapshotId.parse(from_snapshot_id)
        target = SnapshotId.parse(snapshot_id)
        self._connection.refs.reset_branch(branch, target, expected=expected)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch other than main; its snapshots stay until garbage collection."""
        self._connection.refs.delete_branch(branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Create a tag; the name of a deleted tag cannot be used again."""
        self._connection.refs.create_tag(tag, SnapshotId.parse(snapshot_id))

    def list_tags(self) -> set[str]:
        """Return the names of all tags."""
        return self._connection.refs.fetch_tag_names()

    def lookup_tag(self, tag: str) -> str:
        """Return the id of the snapshot that a tag points at."""
        return str(self._connection.refs.fetch_tag(tag))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name cannot be used again."""
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
        start = find_snapshot(refs, branch, tag, snapshot_id)
        return SnapshotInfo.of_all(*refs.iter_ancestry(start))

    async def async_ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncIterator[SnapshotInfo]:
        """Like `ancestry`, without blocking the event loop."""
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
        """Return the history of all branches and tags, or of one snapshot, as a graph.

        The graph prints as text and renders in notebooks, without colors if ``plain``.
        """
        refs = self._connection.refs.pin()
        if branch is None and tag is None and snapshot_id is None:
            return AncestryGraph(fetch_commits(refs), plain=plain)
        start = find_snapshot(refs, branch, tag, snapshot_id)
        return AncestryGraph(fetch_commits(refs, start), plain=plain)

    def ops_log(self) -> Iterator[Update]:
        """Yield the operations on the repository, newest first (spec version 2)."""
        return map(Update.of, self._connection.refs.fetch_ops_log())

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """Like `ops_log`, without blocking the event loop."""
        updates = self.ops_log()
        while (update := await asyncio.to_thread(next, updates, None)) is not None:
            yield update

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Fetch the history entry of a snapshot."""
        return SnapshotInfo.of(
            self._connection.refs.fetch_snapshot_info(SnapshotId.parse(snapshot_id))
        )

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """Return the manifest files of a snapshot."""
        snapshot = self._connection.assets.require_tree(SnapshotId.parse(snapshot_id)).snapshot
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
        """Return the changes from one snapshot to another.

        They are computed from the transaction logs between the two. Snapshots on different branches
        are compared through their last common ancestor.
        """
        refs = self._connection.refs.pin()
        before = find_snapshot(refs, from_branch, from_tag, from_snapshot_id)
        after = find_snapshot(refs, to_branch, to_tag, to_snapshot_id)
        return fetch_diff(refs, self._connection.assets, before, after)

    def fetch_snapshot(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: SnapshotId | str | None = None,
    ) -> SnapshotView:
        """Fetch the snapshot of a branch, a tag or an id, for read-only access to `core` types."""
        refs = self._connection.refs
        found_id = self._connection.assets.require_tree(
            find_snapshot(refs, branch, tag, snapshot_id)
        ).snapshot.id
        return SnapshotView(self._connection.begin_transaction(found_id), refs)

    # -- inspection

    def inspect_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """Describe a snapshot file: its manifests and nodes."""
        return inspect_dicts.inspect_snapshot(self._connection.assets, snapshot_id)

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """Describe a manifest file: the number of chunks of each kind and array."""
        return inspect_dicts.inspect_manifest(self._connection.assets, manifest_id)

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """Describe the transaction log of a snapshot: its changes by node id."""
        return inspect_dicts.inspect_transaction_log(
            self._connection.assets, self._connection.refs, snapshot_id
        )

    def inspect_repo_info(self) -> dict[str, Any]:
        """Describe the repo info file (spec version 2)."""
        return inspect_dicts.inspect_repo_info(self.storage, self._connection.generation)

    # -- sessions

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """Open a branch, a tag or a snapshot for reading, or a branch as of a time."""
        # Reuses the refs that `open` fetched, if that was just now.
        opening_refs = None if self._opening_refs is None else self._opening_refs.take()
        refs = self._connection.refs if opening_refs is None else opening_refs
        if as_of is None:
            target = find_snapshot(refs, branch, tag, snapshot_id)
        else:
            target = find_snapshot_at(refs, branch, tag, snapshot_id, as_of)
        return self._open_session(target, SessionMode.readonly, None, is_named=snapshot_id is None)

    def to_xarray(self, group: str | None = None, **options: Any) -> xr.Dataset:
        """Open a group as an Xarray Dataset; ``options`` as in `icefloe.xarray.open_dataset`."""
        from icefloe.xarray import open_dataset  # noqa: PLC0415 - an extra

        return open_dataset(self, group=group, **options)

    def writable_session(self, branch: str) -> Session:
        """Open the tip of a branch for writing.

        Raises `ReadOnlyError` if the status of the repository is read-only.
        """
        refs = self._connection.refs.pin()
        refs.require_online()
        return self._open_session(
            refs.fetch_branch(branch),
            SessionMode.writable,
            branch,
            refs.get_session_start(),
        )

    def rearrange_session(self, branch: str) -> Session:
        """Open the tip of a branch for moving nodes; raises like `writable_session`."""
        refs = self._connection.refs.pin()
        refs.require_online()
        if self._connection.generation.has_repo_info:
            flags = {flag.id: flag for flag in refs.fetch_feature_flags()}
            if not flags[MOVE_NODE.id].enabled:
                raise SessionStateError(
                    f"moving nodes is disabled by the feature flag {MOVE_NODE.name!r}: see "
                    "Repository.set_feature_flag",
                    kind=ErrorKind.FEATURE_FLAG_DISABLED,
                )
        return self._open_session(
            refs.fetch_branch(branch),
            SessionMode.rearrange,
            branch,
            refs.get_session_start(),
        )

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
        """Yield a store for writing, and commit at the end of the block unless it raises."""
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
        """Rewrite all manifests with the current splitting configuration, and commit."""
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
        dry_run: bool = False,
    ) -> set[str]:
        """Remove snapshots older than a time from history; garbage collection deletes their files.

        Keeps the first snapshot, the tip of main, and the tips of other branches and tags unless
        these are deleted.

        Parameters
        ----------
        delete_expired_branches, delete_expired_tags
            Whether to delete tags, and branches other than main, that point at an expired snapshot.
        dry_run
            Whether to return the ids without changing anything.

        Returns
        -------
            The ids of the expired snapshots; with spec version 1, may include tips that are kept.
        """
        limit = require_time_zone("older_than", older_than)
        expired_ids = self._connection.refs.expire_snapshots(
            ExpirationPolicy(
                correct_limit(self._connection.storage, limit),
                delete_expired_branches,
                delete_expired_tags,
            ),
            dry_run=dry_run,
        )
        if dry_run:
            return {str(snapshot_id) for snapshot_id in expired_ids}
        _LOGGER.info("expired %d snapshots of %s", len(expired_ids), self.storage.url)
        if self._connection.generation.has_parents_in_snapshots:
            self._drop_caches()  # snapshot files were replaced
        return {str(snapshot_id) for snapshot_id in expired_ids}

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
        progress: Progress = ignore_progress,
    ) -> GCSummary:
        """Delete the files that are not reachable from any branch or tag.

        Choose a time before the start of every session that may still commit: nothing refers to the
        files of a session until it commits, so older ones are deleted. The commit then fails.
        Except in spec version 2, a commit notices that only ten minutes after the start of its
        session, so the time should be at least that long ago. Commits of newer sessions are safe.
        If this machine's clock is ahead of the storage's, the time is moved back by the difference.

        Parameters
        ----------
        delete_object_older_than
            Newer files are kept.
        dry_run
            Whether to count files without deleting them.
        max_snapshots_in_memory, max_concurrent_manifest_fetches
            Maximum number of snapshots and of manifests that are read concurrently.
        max_compressed_manifest_mem_bytes, max_decoded_manifest_mem_bytes
            Maximum memory for the manifests being read, compressed and decoded.
        max_concurrent_deletes
            Maximum number of concurrent delete requests.
        max_consecutive_delete_failures
            Number of failed requests in a row after which to stop.
        max_concurrent_listings
            Ignored, accepted for compatibility with Icechunk: each kind of file takes one listing.
        progress
            Called with each `icefloe.maintenance.Step`.
        """
        require_positive(max_concurrent_listings=max_concurrent_listings)
        summary = collect_garbage(
            self._connection.storage,
            self._connection.generation,
            older_than=delete_object_older_than,
            dry_run=dry_run,
            read_limits=ReadLimits(
                max_snapshots_in_memory,
                max_compressed_manifest_mem_bytes,
                max_decoded_manifest_mem_bytes,
                max_concurrent_manifest_fetches,
            ),
            delete_limits=DeleteLimits(max_concurrent_deletes, max_consecutive_delete_failures),
            progress=progress,
        )
        if summary.snapshots_deleted and not dry_run:
            self._drop_caches()
        return summary

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
        progress: Progress = ignore_progress,
    ) -> ChunkStorageStats:
        """Sum the sizes of all chunks in the history of branches and tags.

        The limits and ``progress`` are those of `garbage_collect`.
        """
        return measure_chunks(
            self._connection.storage,
            self._connection.generation,
            limits=ReadLimits(
                max_snapshots_in_memory,
                max_compressed_manifest_mem_bytes,
                max_decoded_manifest_mem_bytes,
                max_concurrent_manifest_fetches,
            ),
            progress=progress,
        )

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Sum the sizes of chunk files; deprecated, use `chunk_storage_stats`."""
        _warn_of_total_chunks_storage("")
        return self.chunk_storage_stats(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        ).native_bytes

    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * 1024 * 1024,
        max_decoded_manifest_mem_bytes: int = 4 * 1024 * 1024 * 1024,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Like `total_chunks_storage`, without blocking the event loop."""
        _warn_of_total_chunks_storage("_async")
        stats = await asyncio.to_thread(
            self.chunk_storage_stats,
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return stats.native_bytes

    # -- files that virtual chunks refer to

    def dependencies(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Dependencies:
        """Count the files that virtual chunks refer to, by container.

        Covers one snapshot if one is named, else the whole history of branches and tags, reading
        every manifest once. Reads no virtual data; containers that may not be read are listed in
        ``unauthorized`` of the result.
        """
        if branch is None and tag is None and snapshot_id is None:
            connection = self._connection
            return count_dependencies(connection.refs, connection.assets, connection.virtual)
        return self.readonly_session(branch, tag=tag, snapshot_id=snapshot_id).dependencies()

    def find_dependents(self, location: str) -> Dependents:
        """Find the snapshots and arrays that refer to a file, for example before you delete it.

        Parameters
        ----------
        location
            URL of the file. A URL that ends in ``/`` means a folder and everything below it.

        Returns
        -------
            The snapshots in the history of branches and tags that refer to it, and their arrays.
            Uncommitted references are not included.
        """
        connection = self._connection
        return find_dependents(location, connection.refs, connection.assets, connection.virtual)

    # -- implementation

    def _drop_caches(self) -> None:
        self._opening_refs = None
        self._connection = self._connection.with_empty_caches()

    def _fetch_refs_if_cheap(self) -> tuple[list[str], list[str], list[SnapshotInfo]] | None:
        """Fetch names and the last commits, or return None if that takes network requests."""
        if not self.storage.is_low_latency:
            return None
        refs = self._connection.refs.pin()
        branches = sorted(refs.fetch_branch_names())
        commits = self.ancestry(branch=MAIN) if MAIN in branches else iter(())
        return branches, sorted(refs.fetch_tag_names()), list(islice(commits, _NUM_SHOWN_COMMITS))

    def _open_session(
        self,
        snapshot_id: SnapshotId,
        mode: SessionMode,
        branch: str | None,
        start: SessionStart | None = None,
        *,
        is_named: bool = True,
    ) -> Session:
        """Open a session; ``is_named`` says that a branch or tag has the snapshot."""
        connection = self._connection
        try:
            tree = connection.assets.require_tree(snapshot_id)
        except SnapshotNotFoundError:
            if not is_named:
                raise
            # The session opens, as in Icechunk, so that its branch can be reset; reading it raises.
        else:
            preload = connection.config.effective_manifest.effective_preload
            start_preload(connection.assets, tree, preload)
        return Session(connection, snapshot_id, mode=mode, branch=branch, start=start)


def _warn_of_total_chunks_storage(suffix: str) -> None:
    warnings.warn(
        f"Repository.total_chunks_storage{suffix} is deprecated: use "
        f"chunk_storage_stats{suffix}, whose native_bytes are the same",
        DeprecationWarning,
        stacklevel=3,
    )


def _require_storage(storage: object) -> None:
    if not isinstance(storage, Storage):
        raise InvalidInputError(
            f"expected a storage, got {storage!r:.200}: pass local_filesystem_storage(path), "
            "s3_storage(...) or storage_from_url(url)",
            kind=ErrorKind.STORAGE_CONFIG,
        )


def _require_prefix(storage: Storage) -> None:
    place, _ = find_repository_place(storage)
    if place is not None and not isinstance(place, HttpPlace) and not place.prefix:
        raise InvalidInputError(
            f"{storage.url}: a repository cannot be created at an empty prefix, which is a whole "
            "bucket: choose a prefix; existing repositories can be opened",
            kind=ErrorKind.EMPTY_PREFIX_CREATION,
        )


def _choose_generation(name: str | None, spec_version: SpecVersion | int | None) -> Generation:
    if name is not None and spec_version is not None:
        raise InvalidInputError("pass generation or spec_version, not both")
    if name is not None:
        return get_generation(name)
    version = get_default_spec_version() if spec_version is None else SpecVersion(spec_version)
    return find_generation(version)


def _require_config(config: object) -> None:
    if config is not None and not isinstance(config, RepositoryConfig):
        raise InvalidInputError(
            f"config must be a RepositoryConfig, not a {type(config).__name__}",
            kind=ErrorKind.STORAGE_CONFIG,
        )


def _add_store_root(
    storage: Storage, store_root: Storage | None, attribution: Attribution | None
) -> Storage:
    _require_storage(storage)
    return _add_attribution(add_store_root(storage, store_root), attribution)


def _add_attribution(storage: Storage, attribution: Attribution | None) -> Storage:
    _require_storage(storage)
    if attribution is None:
        return storage
    return storage.with_user_agent(attribution.user_agent(f"icefloe/{__version__}"))
