"""One open repository: its storage, references, files and configuration, shared by its sessions."""

from __future__ import annotations

import os
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from icefloe.assets import Assets
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.format.location_compression import LocationCompression
from icefloe.refs.ref_files import RefFiles
from icefloe.refs.repo_file import RepoFile
from icefloe.transaction.transaction import Transaction

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

    Copies of one connection that are unpickled in one process share its clients and caches, so
    that of many tasks that carry the same session only the first fetches its snapshot.

    Parameters
    ----------
    storage
        Where the repository is, with the settings that apply.
    spec_version
        Its generation.
    config
        The configuration that applies: defaults, persisted and given, merged.
    credentials
        What virtual chunk containers may be read with, by URL prefix or name; None where the user
        says nothing, so that only those of the repository's own platform are read.
    default_commit_metadata
        What every commit records besides its own metadata.
    assets, virtual
        The files and the virtual chunks, where somebody has them open already.
    token
        What the copies of one connection have in common; a new one if not given.
    """

    def __init__(
        self,
        storage: Storage,
        spec_version: int,
        config: RepositoryConfig,
        credentials: Mapping[str, AnyCredential | None] | None,
        *,
        default_commit_metadata: Mapping[str, Any] | None = None,
        assets: Assets | None = None,
        virtual: VirtualChunks | None = None,
        token: str | None = None,
    ) -> None:
        self.storage = storage
        self.spec_version = spec_version
        self.config = config
        self.credentials = None if credentials is None else dict(credentials)
        self.default_commit_metadata = dict(default_commit_metadata or {})
        self.assets = assets or Assets(
            storage,
            spec_version,
            config.effective_caching,
            max_concurrent_requests=config.effective_max_concurrent_requests,
        )
        refs: Refs = RefFiles(storage) if spec_version == 1 else RepoFile(storage)
        self.refs = refs.with_assets(self.assets)
        # Nobody said anything about containers, or somebody said which there are, perhaps none.
        containers = None if config.virtual_chunk_containers is None else config.usable_containers()
        self.virtual = virtual or VirtualChunks(containers, self.credentials, storage)
        # Nothing that it stands for changes, so copies that have it have the same credentials.
        self._token = token or uuid.uuid4().hex

    def __reduce__(self) -> Any:
        return _connect, (
            self._token,
            self.storage,
            self.spec_version,
            self.config,
            self.credentials,
            self.default_commit_metadata,
        )

    @property
    def location_compression(self) -> LocationCompression:
        """How manifests compress the locations of virtual chunks."""
        rules = self.config.effective_manifest.effective_virtual_chunk_location_compression
        return LocationCompression(
            min_locations=rules.effective_min_num_chunks,
            max_training_samples=rules.effective_dictionary_max_training_samples,
            max_dictionary_size=rules.effective_dictionary_max_size_bytes,
            level=rules.effective_compression_level,
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


class _Unpickled:
    """The connections that came to this process last, by their token."""

    _MAX_CONNECTIONS: Final = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: OrderedDict[str, Connection] = OrderedDict()

    def get(self, token: str) -> Connection | None:
        with self._lock:
            if token in self._connections:
                self._connections.move_to_end(token)
            return self._connections.get(token)

    def keep(self, token: str, connection: Connection) -> None:
        with self._lock:
            self._connections[token] = connection
            if len(self._connections) > self._MAX_CONNECTIONS:
                self._connections.popitem(last=False)

    def forget(self) -> None:
        # Threads and locks of the parent do not exist in a forked child.
        self.__init__()  # type: ignore[misc]


_unpickled: Final = _Unpickled()
os.register_at_fork(after_in_child=_unpickled.forget)


def _connect(  # noqa: PLR0917 - pickle calls it
    token: str,
    storage: Storage,
    spec_version: int,
    config: RepositoryConfig,
    credentials: Mapping[str, AnyCredential | None] | None,
    default_commit_metadata: Mapping[str, Any],
) -> Connection:
    first = _unpickled.get(token)
    copy = Connection(
        storage if first is None else first.storage,
        spec_version,
        config,
        credentials,
        default_commit_metadata=default_commit_metadata,
        assets=None if first is None else first.assets,
        virtual=None if first is None else first.virtual,
        token=token,
    )
    if first is None:
        _unpickled.keep(token, copy)
    return copy
