"""The interface of all storages.

A `Storage` maps keys such as ``snapshots/1CECHNKREP0F1RSTCMT0`` to bytes below one root, and does
not interpret the bytes. It is thread safe, can be pickled (for Spark tasks) and has no credentials
in its repr.

It raises errors of `icefloe.errors`: `ObjectNotFoundError`, `PreconditionFailedError` (the
condition did not hold, nothing was written), `OutcomeUnknownError` (a conditional put may or may
not have succeeded), `ReadOnlyError`, and `StorageError` for everything else.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypeAlias

from icefloe.model.byte_range import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from icefloe.model.byte_range import ByteRange
    from icefloe.model.storage_settings import StorageSettings


# Named tuples, which are made faster than dataclasses: a listing has one of each for every object.


class Version(NamedTuple):
    """Opaque version of an object, for conditional puts."""

    etag: str | None = None
    generation: str | None = None


def is_same_version(version: Version, other: Version) -> bool:
    """Return whether two versions are equal; compares generations if both have one, else ETags."""
    if version.generation is not None and other.generation is not None:
        return version.generation == other.generation
    return version.etag is not None and version.etag == other.etag


class ObjectInfo(NamedTuple):
    """Metadata of an object."""

    key: str
    size_bytes: int
    last_modified: datetime
    version: Version


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of an object or of a range of it, with the metadata of that version."""

    data: bytes | memoryview
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """Entry of `Storage.list_objects_metadata`, with Icechunk's field names."""

    key: str
    size_bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AbandonedUploads:
    """Uploads that writers left unfinished when they died."""

    num_files: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Put unconditionally."""


@dataclass(frozen=True, slots=True)
class Create:
    """Put only if the key does not exist."""


@dataclass(frozen=True, slots=True)
class UpdateIfMatch:
    """Put only if the object still has this version (compare-and-swap)."""

    version: Version


Update: TypeAlias = UpdateIfMatch
"""Former name of `UpdateIfMatch`."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Put under a new random key that is not read until another object refers to it.

    Not atomic: a writer that dies may leave a partial object, which garbage collection removes. Not
    durable until the next put with another mode. If the key exists, a storage may raise
    `PreconditionFailedError` or replace the object; random keys do not collide.
    """


PutMode: TypeAlias = Overwrite | Create | UpdateIfMatch | Fresh


class Storage(ABC):
    """The objects below one root, with the operations that the Icechunk format requires."""

    # Icechunk's constructors; `icefloe.storage.factories` assigns them.
    new_azure_blob: ClassVar[Callable[..., Storage]]
    new_gcs: ClassVar[Callable[..., Storage]]
    new_hf: ClassVar[Callable[..., Storage]]
    new_http: ClassVar[Callable[..., Storage]]
    new_in_memory: ClassVar[Callable[..., Storage]]
    new_local_filesystem: ClassVar[Callable[..., Storage]]
    new_r2: ClassVar[Callable[..., Storage]]
    new_redirect: ClassVar[Callable[..., Storage]]
    new_s3: ClassVar[Callable[..., Storage]]
    new_s3_object_store: ClassVar[Callable[..., Storage]]
    new_tigris: ClassVar[Callable[..., Storage]]

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the root, without credentials, for messages."""

    @property
    def store_root_url(self) -> str | None:
        """URL of the root of the immutable files, if it differs from `url`."""
        return None

    @property
    def read_only(self) -> bool:
        """Whether every write raises `ReadOnlyError`."""
        return False

    @property
    def is_low_latency(self) -> bool:
        """Whether reads come from memory or a local disk.

        Then `get_bytes` may be called on an event loop, because a thread switch would cost more
        than the read. Otherwise `get_bytes_async` allows many concurrent reads.
        """
        return False

    @abstractmethod
    def default_settings(self) -> StorageSettings:
        """Return the settings that apply unless the repository or the user sets others."""

    def with_settings(self, settings: StorageSettings) -> Self:  # noqa: ARG002
        """Return a storage of the same root with other settings; unset ones have their defaults.

        A storage that sends no requests returns itself: the settings have no effect on it, and its
        conditional puts cannot be disabled by the ``unsafe_`` settings.
        """
        return self

    def with_user_agent(self, user_agent: str) -> Self:  # noqa: ARG002
        """Return a storage of the same root whose requests have this ``User-Agent`` header.

        A storage that sends no requests returns itself.
        """
        return self

    @abstractmethod
    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        """Fetch an object or a range of it; one request.

        A range past the end raises `InvalidInputError`, except ``Last``. If the object or range is
        larger than ``max_bytes``, raises `StorageError` of kind ``INVALID_OBJECT_SIZE`` before any
        bytes are read: object sizes are untrusted, and the result is held in memory.
        """

    def get_if_changed(
        self, key: str, version: Version, *, max_bytes: int | None = None
    ) -> Fetched | None:
        """Fetch an object unless it still has a known version, then return None; one request.

        None means that the content is that of ``version``: a service whose entity tags are digests
        gives the same one to the same content. An empty version equals no other.

        A storage without such a request fetches the object and compares.
        """
        fetched = self.get(key, max_bytes=max_bytes)
        return None if is_same_version(fetched.info.version, version) else fetched

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges of one object, in the given order; nearby ranges share a request.

        A range past the end raises `InvalidInputError`.
        """

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Fetch the bytes of one range, without metadata; one request.

        A range past the end raises `InvalidInputError`. This is the hot path for chunks.
        """
        return self.get(key, Bounded(start, start + length)).data

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        """`get_bytes` without blocking the event loop; works on any loop."""
        return await asyncio.to_thread(self.get_bytes, key, start, length)

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:
        """Write an object atomically and durably, under the condition of ``mode``.

        Returns the version that this put created. `PreconditionFailedError` means that nothing was
        written; after `OutcomeUnknownError` the caller must read the object.

        A `Fresh` put guarantees less and may return an empty version, which matches no object.
        """

    async def put_async(self, key: str, data: bytes | memoryview) -> Version:
        """`Fresh` put without blocking the event loop; works on any loop.

        ``data`` must not change before the put ends. Other modes have no async version: they occur
        once per commit, and the outcome of a cancelled one would be unknown.
        """
        return await asyncio.to_thread(self.put, key, data, Fresh())

    def list_objects(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """List keys and sizes as Icechunk does; `list_objects_metadata` replaces it."""
        return [
            (info.key, info.size_bytes) for info in self.list_objects_metadata(settings, prefix)
        ]

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """List objects as Icechunk does, with keys relative to ``prefix``.

        Parameters
        ----------
        settings
            Settings for this listing, instead of those of the storage.
        prefix
            Complete path segments, with or without a trailing ``/``; None or empty lists all.
        """
        storage = self if settings is None else self.with_settings(settings)
        parent = f"{prefix.rstrip('/')}/" if prefix else ""
        return [
            StorageObjectInfo(info.key[len(parent) :], info.size_bytes, info.last_modified)
            for info in storage.list(parent)
        ]

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, in batches where supported; missing objects are ignored."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose key starts with ``prefix``, in the byte order of the keys.

        ``prefix`` is empty or ends in ``/``.
        """

    def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
        """List the first objects whose key starts with ``prefix``, at most ``limit``.

        One request for one page of a listing in object stores. No key may have a ``/`` after the
        prefix: some services list directories in another order than the keys in them.
        """
        return list(islice(self.list(prefix), limit))

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Fetch the metadata of one object; one request."""

    def read_clock(self, fresh_key: str | None = None) -> datetime:
        """Return the current time of the clock that dates new objects.

        Parameters
        ----------
        fresh_key
            Object that was written just now; then this is one request. Without it, a temporary
            object is written and deleted, three requests.
        """
        if fresh_key is not None:
            return self.head(fresh_key).last_modified
        key = f"clock.{secrets.token_hex(10)}"
        self.put(key, b"")
        try:
            return self.head(key).last_modified
        finally:
            self.delete_many([key])

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy an object within the storage, replacing ``target`` if it exists."""

    def copy_from(self, source: Storage, source_key: str, key: str) -> bool:  # noqa: ARG002
        """Copy an immutable object of another storage, if its bytes need not pass this process.

        Returns False if that is impossible; then nothing was written. The object at ``key`` is
        created at once and complete. If it exists, it must have the same content: it may be
        replaced or kept. The copy may share the modification time and version of the source.
        """
        return False

    def flush_fresh(self) -> None:
        """Make all `Fresh` puts that have ended durable, also those of other processes.

        Every put of another mode does so too. A storage whose puts are durable does nothing.
        """
        return

    def delete_abandoned_uploads(
        self,
        *,
        before: datetime,  # noqa: ARG002 - for subclasses
        dry_run: bool = False,  # noqa: ARG002
    ) -> AbandonedUploads:
        """Delete uploads of dead writers that were last modified before a time, or count them.

        Such uploads are not in listings. Object stores expire their own, so only a local file
        system has any to delete.
        """
        return AbandonedUploads()
