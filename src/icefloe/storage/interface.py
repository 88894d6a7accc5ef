"""What every place that holds a repository can do.

A `Storage` maps keys such as ``snapshots/1CECHNKREP0F1RSTCMT0`` to bytes below one root. It knows
nothing of what the bytes mean. Calls are plain and thread safe; a storage pickles, so that Spark
tasks can carry it, and shows no credential in its repr.

Errors are those of `icefloe.errors`: `ObjectNotFoundError`, `PreconditionFailedError` (the
condition did not hold, nothing was written), `OutcomeUnknownError` (a conditional put may or may
not have landed), `ReadOnlyError`, and `StorageError` for the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from icefloe.model.byte_range import Bounded, ByteRange
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
class Overwrite:
    """Put whatever is there now."""


@dataclass(frozen=True, slots=True)
class Create:
    """Put only if nothing is there."""


@dataclass(frozen=True, slots=True)
class Update:
    """Put only if what is there still has this version."""

    version: Version


PutMode: TypeAlias = Overwrite | Create | Update


class Storage(ABC):
    """One root in one place, with the operations that the specification requires."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, for people: a URL without credentials."""

    @property
    def read_only(self) -> bool:
        """Whether every write raises `ReadOnlyError`."""
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

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        """Write a whole object atomically and durably, under the condition of ``mode``.

        The answer is the version that this very put made. `PreconditionFailedError` proves that
        nothing was written; after `OutcomeUnknownError` the caller has to look at what is there.
        """

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
