"""An open repository: storage, branches and tags, files and configuration."""

from __future__ import annotations

import os
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from icefloe.assets import Assets
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.format.location_compression import LocationCompression
from icefloe.model.config import RepositoryConfig
from icefloe.refs.opening import make_refs
from icefloe.transaction.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.generation import Generation
    from icefloe.model.ids import SnapshotId
    from icefloe.refs.interface import Refs
    from icefloe.refs.opening import OpenedRefs
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import Storage
    from icefloe.transaction.change_set import ChangeSet


class Connection:
    """The state that sessions of an open repository share. Pickles without its caches.

    Copies of a connection that are unpickled in one process share clients and caches, so that tasks
    with the same session fetch its snapshot once per process.

    Parameters
    ----------
    storage
        Storage of the repository, with the effective settings.
    generation
        Generation of the repository.
    config
        Effective configuration: the default, persisted and user's settings merged.
    credentials
        Credentials of virtual chunk containers by URL prefix or name. None allows only containers
        on the repository's own platform; an empty mapping allows none.
    default_commit_metadata
        Metadata added to every commit.
    assets, virtual
        Those of another connection, to share its caches.
    refs
        Refs that were opened, or those of another connection.
    token
        Id that a connection and its pickled copies share; by default a new id.
    """

    def __init__(
        self,
        storage: Storage,
        generation: Generation,
        config: RepositoryConfig,
        credentials: Mapping[str, AnyCredential | None] | None,
        *,
        default_commit_metadata: Mapping[str, Any] | None = None,
        assets: Assets | None = None,
        virtual: VirtualChunks | None = None,
        refs: Refs | None = None,
        token: str | None = None,
    ) -> None:
        self.storage = storage
        self.generation = generation
        self.config = config
        self.credentials = None if credentials is None else dict(credentials)
        self.default_commit_metadata = dict(default_commit_metadata or {})
        self.assets = assets or Assets(
            storage,
            generation,
            config.effective_caching,
            max_concurrent_requests=config.effective_max_concurrent_requests,
        )
        refs = refs.with_storage(storage) if refs is not None else make_refs(storage, generation)
        self.refs = refs.with_assets(self.assets)
        self.virtual = virtual or VirtualChunks(
            list((config.virtual_chunk_containers or {}).values()),
            self.credentials,
            storage,
            defaults=config.effective_default_virtual_chunk_containers,
        )
        # Copies with the same token share `virtual`; this is safe because credentials never change.
        self._token = token or uuid.uuid4().hex

    def __reduce__(self) -> Any:
        return _unpickle, (
            self._token,
            self.storage,
            self.generation,
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
            max_dictionary_bytes=rules.effective_dictionary_max_size_bytes,
            level=rules.effective_compression_level,
        )

    def with_config(
        self,
        config: RepositoryConfig,
        credentials: Mapping[str, AnyCredential | None] | None = None,
    ) -> Connection:
        """Return a connection with ``config`` merged over this configuration, and shared caches."""
        merged = self.config.merge(config)
        return Connection(
            self.storage.with_settings(merged.effective_storage),
            self.generation,
            merged,
            self.credentials if credentials is None else credentials,
            default_commit_metadata=self.default_commit_metadata,
            assets=self.assets,
            refs=self.refs,
        )

    def with_empty_caches(self) -> Connection:
        """Return an equal connection with empty caches."""
        return Connection(
            self.storage,
            self.generation,
            self.config,
            self.credentials,
            default_commit_metadata=self.default_commit_metadata,
        )

    def begin_transaction(
        self, snapshot_id: SnapshotId, changes: ChangeSet | None = None
    ) -> Transaction:
        """Begin a transaction from a snapshot."""
        return Transaction(self.assets, snapshot_id, self.config, self.virtual, changes)

    def is_same_repository(self, other: Connection) -> bool:
        """Whether two connections have the same repository, judged by URL."""
        if self.storage is other.storage:
            return True
        # All in-memory storages have the same URL, but each is a separate repository.
        return self.storage.url == other.storage.url and self.storage.url != "memory://"


def connect(
    storage: Storage,
    opened: OpenedRefs,
    config: RepositoryConfig | None,
    credentials: Mapping[str, AnyCredential | None] | None,
) -> Connection:
    """Connect to a repository, merging the default, persisted and user's settings."""
    merged = RepositoryConfig(storage=storage.default_settings())
    for settings in (opened.config, config):
        if settings is not None:
            merged = merged.merge(settings)
    storage = storage.with_settings(merged.effective_storage)
    return Connection(storage, opened.refs.generation, merged, credentials, refs=opened.refs)


class _UnpickledConnections:
    """The most recently used connections that were unpickled in this process, by token."""

    _MAX_CONNECTIONS: Final = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: OrderedDict[str, Connection] = OrderedDict()

    def get(self, token: str) -> Connection | None:
        with self._lock:
            if token in self._connections:
                self._connections.move_to_end(token)
            return self._connections.get(token)

    def add(self, token: str, connection: Connection) -> None:
        with self._lock:
            self._connections[token] = connection
            if len(self._connections) > self._MAX_CONNECTIONS:
                self._connections.popitem(last=False)

    def clear(self) -> None:
        # A forked process lacks the threads of its parent, and may have inherited a held lock.
        self.__init__()  # type: ignore[misc]


_unpickled: Final = _UnpickledConnections()
os.register_at_fork(after_in_child=_unpickled.clear)


def _unpickle(  # noqa: PLR0917 - pickle passes positional arguments
    token: str,
    storage: Storage,
    generation: Generation,
    config: RepositoryConfig,
    credentials: Mapping[str, AnyCredential | None] | None,
    default_commit_metadata: Mapping[str, Any],
) -> Connection:
    cached = _unpickled.get(token)
    copy = Connection(
        storage if cached is None else cached.storage,
        generation,
        config,
        credentials,
        default_commit_metadata=default_commit_metadata,
        assets=None if cached is None else cached.assets,
        virtual=None if cached is None else cached.virtual,
        token=token,
    )
    if cached is None:
        _unpickled.add(token, copy)
    return copy
