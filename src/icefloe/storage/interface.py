"""What every place that holds a repository can do.

A `Storage` maps keys such as ``snapshots/1CECHNKREP0F1RSTCMT0`` to bytes below one root. It knows
nothing of what the bytes mean. Calls are plain and thread safe; a storage pickles, so that Spark
tasks can carry it, and shows no credential in its repr.

Errors are those of `icefloe.errors`: `ObjectNotFoundError`, `PreconditionFailedError` (the
condition did not hold, nothing was written), `OutcomeUnknownError` (a conditional put may or may
not have landed), `ReadOnlyError`, and `StorageError` for the rest.
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
    """What a storage knows an object's present content by; opaque to everyone else."""

    etag: str | None = None
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a storage tells of an object without its bytes."""

    key: str
    size_bytes: int
    last_modified: datetime
    version: Version


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of an object, or of a range of it, and what was known of it at that moment."""

    data: bytes | memoryview
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """What `Storage.list_objects_metadata` tells of an object, in the words of Icechunk."""

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
    """Put whatever is there now."""


@dataclass(frozen=True, slots=True)
class Create:
    """Put only if nothing is there."""


@dataclass(frozen=True, slots=True)
class UpdateIfMatch:
    """Put only if what is there still has this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Fresh:
    """Put under a key that is new and random; nobody reads it before something else names it.

    Not atomic: a writer that dies may leave part of the object under a key that nothing refers to;
    garbage collection removes it. Nor durable by itself: it is so, where the storage is, before the
    next put of another mode publishes anything. A place may refuse a key that exists
    (`PreconditionFailedError`) or replace the object: with random keys neither happens.
    """


PutMode: TypeAlias = Overwrite | Create | UpdateIfMatch | Fresh


class Storage(ABC):
    """One root in one place, with the operations that the specification requires."""

    # Icechunk's ways to make one. They are `icefloe.storage.factories`, which knows the storages.
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
        """Where it is, for people: a URL without credentials."""

    @property
    def read_only(self) -> bool:
        """Whether every write raises `ReadOnlyError`."""
        return False

    @property
    def is_low_latency(self) -> bool:
        """Whether reads come from memory or a disk of this machine.

        An event loop may then call `get_bytes` without leaving its thread, which costs more than
        the read. Where it is False, `get_bytes_async` lets many reads wait at the same time.
        """
        return False

    @abstractmethod
    def default_settings(self) -> StorageSettings:
        """Tell the settings that apply where neither the repository nor the user has set any."""

    def with_settings(self, settings: StorageSettings) -> Self:  # noqa: ARG002 - see below
        """Make a storage of the same place that behaves as ``settings`` say.

        What is unset there keeps the default. A place that sends no requests has nothing to
        retry, time out or split, so it stays as it is; the ``unsafe_`` switches, which only ever
        take safety away, do not switch off conditions that it can keep.
        """
        return self

    def with_user_agent(self, user_agent: str) -> Self:  # noqa: ARG002 - see below
        """Make a storage of the same place whose requests say by themselves whose they are.

        A place that sends no requests stays as it is.
        """
        return self

    @abstractmethod
    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        """Fetch an object or a range of it; one request.

        A range that reaches past the end raises `InvalidInputError`, except ``Last``. More than
        ``max_bytes`` asked for (the whole object, or what the range takes of it) raise
        `StorageError` of kind ``INVALID_OBJECT_SIZE`` before they are read: the size of an object
        is whatever somebody made it, and the answer stands in memory.
        """

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges of one object, in the order asked; neighbours share a request.

        A range that reaches past the end raises `InvalidInputError`.
        """

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Fetch the bytes of one range and nothing else of the object; one request.

        A range that reaches past the end raises `InvalidInputError`. This is how chunks are read,
        so a place should make it as cheap as it can.
        """
        return self.get(key, Bounded(start, start + length)).data

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Do as `get_bytes`, without keeping the event loop from others, whichever loop it is."""
        return await asyncio.to_thread(self.get_bytes, key, start, length)

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:
        """Write a whole object atomically and durably, under the condition of ``mode``.

        The answer is the version that this very put made. `PreconditionFailedError` proves that
        nothing was written; after `OutcomeUnknownError` the caller has to look at what is there.

        A `Fresh` put promises less, and may answer an empty version, which matches no object:
        nobody updates what was written under a random key.
        """

    async def put_async(self, key: str, data: bytes | memoryview) -> Version:
        """Do a `Fresh` put without keeping the event loop from others, whichever loop it is.

        ``data`` must not change before it ends. Puts that publish have no such twin: they come
        once per commit, and what they mean when a task is cancelled would be unknown.
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
        found = self.list_objects_metadata(settings, prefix)
        return [(info.key, info.size_bytes) for info in found]

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """List the objects below ``prefix`` as Icechunk does: with keys relative to it.

        For programs that were written for Icechunk; `list` tells whole keys, one at a time.

        Parameters
        ----------
        settings
            Override the storage's own for this listing.
        prefix
            Whole segments, with or without ``/`` at the end; None and empty mean everything.
        """
        storage = self if settings is None else self.with_settings(settings)
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return [
            StorageObjectInfo(info.key[len(below) :], info.size_bytes, info.last_modified)
            for info in storage.list(below)
        ]

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, in batches where the place has them; what is absent is not an error."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose key starts with ``prefix``, in the order of the keys' bytes.

        ``prefix`` is empty or ends in ``/``.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Fetch what is known of one object; one request."""

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
