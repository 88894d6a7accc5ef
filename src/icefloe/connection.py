"""One open repository: its storage, references, files and configuration, shared by its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.assets import Assets
from icefloe.refs.ref_files import RefFiles
from icefloe.refs.repo_file import RepoFile
from icefloe.transaction.transaction import Transaction
from icefloe.virtual import VirtualChunks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import Storage
    from icefloe.transaction.change_set import ChangeSet


class Connection:
    """What every session of an open repository needs; pickles, caches left behind.

    Parameters
    ----------
    storage
        Where the repository is, with the settings that apply.
    spec_version
        Its generation.
    config
        The configuration that applies: defaults, persisted and given, merged.
    credentials
        What virtual chunk containers may be read with, by URL prefix.
    default_commit_metadata
        What every commit records besides its own metadata.
    assets
        The files, where somebody has them open already.
    """

    def __init__(
        self,
        storage: Storage,
        spec_version: int,
        config: RepositoryConfig,
        credentials: Mapping[str, AnyCredential | None],
        *,
        default_commit_metadata: Mapping[str, Any] | None = None,
        assets: Assets | None = None,
    ) -> None:
        self.storage = storage
        self.spec_version = spec_version
        self.config = config
        self.credentials = dict(credentials)
        self.default_commit_metadata = dict(default_commit_metadata or {})
        self.assets = assets or Assets(
            storage,
            spec_version,
            config.effective_caching,
            max_concurrent_requests=config.effective_max_concurrent_requests,
        )
        refs: Refs = RefFiles(storage) if spec_version == 1 else RepoFile(storage)
        self.refs = refs.with_assets(self.assets)
        self.virtual = VirtualChunks(config.usable_containers(), self.credentials, storage)

    def __reduce__(self) -> Any:
        return _connect, (
            self.storage,
            self.spec_version,
            self.config,
            self.credentials,
            self.default_commit_metadata,
        )

    def transaction(self, snapshot_id: SnapshotId, changes: ChangeSet | None = None) -> Transaction:
        """Begin a transaction from a snapshot."""
        return Transaction(self.assets, snapshot_id, self.config, self.virtual, changes)

    def is_same_repository(self, other: Connection) -> bool:
        """Whether two connections lead to the same place, as far as that can be told."""
        if self.storage is other.storage:
            return True
        # Storages in memory all have the same address, and none is another's place.
        return self.storage.url == other.storage.url and self.storage.url != "memory://"


def _connect(
    storage: Storage,
    spec_version: int,
    config: RepositoryConfig,
    credentials: Mapping[str, AnyCredential | None],
    default_commit_metadata: Mapping[str, Any],
) -> Connection:
    return Connection(
        storage,
        spec_version,
        config,
        credentials,
        default_commit_metadata=default_commit_metadata,
    )
