"""The interface of all storages.

A `Storage` maps keys such as ``snapshots/1CECHNKREP0F1RSTCMT0`` to bytes below one root, and does
not interpret the bytes. It is thread safe, pickles (Spark tasks carry it) and shows no credentials
in its repr.

Errors come from `icefloe.errors`: `ObjectNotFoundError`, `PreconditionFailedError` (the condition
did not hold, nothing was written), `OutcomeUnknownError` (a conditional put may or may not have
succeeded), `ReadOnlyError`, and `StorageError` for everything else.
"""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

from icefloe.model.byte_range import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from icefloe.model.byte_range import ByteRange
    from icefloe.model.storage_settings import StorageSettings


@dataclass(frozen=True, slots=True)
class Version:
    """Opaque identity of an object's content."""

    etag: str | None = None
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object."""

    key: str
    size_bytes: int
    last_modified: datetime
    version: Version


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of an object or of a range of it, with the metadata at that moment."""

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
    """Put under a new random key that is not read before another object refers to it.

    Not atomic: a writer that dies may leave a partial object, which garbage collection removes. Not
    durable until the next put of another mode. If the key exists, a storage may raise
    `PreconditionFailedError` or replace the object; with random keys neither happens.
    """


PutMode: TypeAlias = Overwrite | Create | UpdateIfMatch | Fresh


class Storage(ABC):
    """One root in one store, with the operations that the specification requires."""

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
    def read_only(self) -> bool:
        """Whether every write raises `ReadOnlyError`."""
        return False

    @property
    def is_low_latency(self) -> bool:
        """Whether reads come from memory or a local disk.

        An event loop may then call `get_bytes` inline, since a thread switch costs more than the
        read. Otherwise `get_bytes_async` lets many reads wait concurrently.
        """
        return False

    @abstractmethod
    def default_settings(self) -> StorageSettings:
        """Return the settings that apply where neither the repository nor the user sets any."""

    def with_settings(self, settings: StorageSettings) -> Self:  # noqa: ARG002
        """Return a storage of the same root with other settings; unset ones keep their defaults.

        A storage that sends no requests has nothing to retry, time out or split, and returns
        itself. The ``unsafe_`` switches do not disable conditional writes that it supports.
        """
        return self

    def with_user_agent(self, user_agent: str) -> Self:  # noqa: ARG002
        """Return a storage of the same root whose requests carry this ``User-Agent``.

        A storage that sends no requests returns itself.
        """
        return self

    @abstractmethod
    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        """Fetch an object or a range of it; one request.

        A range past the end raises `InvalidInputError`, except ``Last``. If the object, or the
        range of it, is larger than ``max_bytes``, raises `StorageError` of kind
        ``INVALID_OBJECT_SIZE`` before reading: object sizes are untrusted, and the result is held
        in memory.
        """

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges of one object, in the given order; nearby ranges share a request.

        A range past the end raises `InvalidInputError`.
        """

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Fetch the bytes of one range, without metadata; one request.

        A range past the end raises `InvalidInputError`. Chunks are read this way, so it is the hot
        path.
        """
        return self.get(key, Bounded(start, start + length)).data

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        """`get_bytes` without blocking the event loop, whichever loop is running."""
        return await asyncio.to_thread(self.get_bytes, key, start, length)

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:
        """Write a whole object atomically and durably, under the condition of ``mode``.

        Returns the version that this put created. `PreconditionFailedError` proves that nothing was
        written; after `OutcomeUnknownError` the caller has to read the object.

        A `Fresh` put guarantees less and may return an empty version, which matches no object.
        """

    async def put_async(self, key: str, data: bytes | memoryview) -> Version:
        """`Fresh` put without blocking the event loop, whichever loop is running.

        ``data`` must not change before it ends. Other modes have no async twin: they occur once per
        commit, and the outcome of a cancelled one would be unknown.
        """
        return await asyncio.to_thread(self.put, key, data, Fresh())

    def list_objects(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """List keys and sizes as Icechunk does; deprecated, use `list_objects_metadata`."""
        warnings.warn(
            "Storage.list_objects is deprecated: use list_objects_metadata, or list",
            DeprecationWarning,
            stacklevel=2,
        )
        return [
            (info.key, info.size_bytes) for info in self.list_objects_metadata(settings, prefix)
        ]

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """List objects as Icechunk does: with keys relative to ``prefix``.

        Parameters
        ----------
        settings
            Override the storage's own for this listing.
        prefix
            Whole segments, with or without a trailing ``/``; None and empty list everything.
        """
        storage = self if settings is None else self.with_settings(settings)
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return [
            StorageObjectInfo(info.key[len(below) :], info.size_bytes, info.last_modified)
            for info in storage.list(below)
        ]

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, in batches where supported; missing objects are ignored."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose key starts with ``prefix``, in the byte order of the keys.

        ``prefix`` is empty or ends in ``/``.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Fetch the metadata of one object; one request."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy an object within the storage, replacing what is at ``target``."""

    def delete_abandoned_uploads(
        self,
        *,
        before: datetime,  # noqa: ARG002 - for subclasses
        dry_run: bool = False,  # noqa: ARG002
    ) -> AbandonedUploads:
        """Delete unfinished uploads of dead writers, last modified before a time; or count them.

        Listings do not show such uploads. Object stores expire theirs, so only a local file system
        has any to delete.
        """
        return AbandonedUploads()
