"""A storage in the memory of one process, for tests and for repositories that are thrown away.

It keeps every promise of the interface, true compare-and-swap included. It cannot leave its
process: a copy in another process would be another repository, so pickling is refused.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Never

from icefloe.errors import ObjectNotFoundError, PreconditionFailedError, SessionStateError
from icefloe.model.byte_range import Bounded, resolve
from icefloe.model.storage_settings import IN_MEMORY_DEFAULTS, StorageSettings
from icefloe.storage.interface import (
    Create,
    Fetched,
    ObjectInfo,
    Overwrite,
    PutMode,
    Storage,
    UpdateIfMatch,
    Version,
)
from icefloe.storage.keys import validate_key, validate_list_prefix
from icefloe.storage.size_limit import require_at_most

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.byte_range import ByteRange


@dataclass(frozen=True, slots=True)
class _StoredObject:
    data: bytes
    info: ObjectInfo


class MemoryStorage(Storage):
    """Objects in a dictionary behind a lock."""

    def __init__(self) -> None:
        self._objects: dict[str, _StoredObject] = {}
        self._lock = threading.Lock()
        # One counter for all keys: a version is never used twice, not even by another object.
        self._versions = count(1)

    @property
    def url(self) -> str:
        """``memory://``; every storage in memory is its own."""
        return "memory://"

    def __repr__(self) -> str:
        return f"MemoryStorage(<{len(self._objects)} objects>)"

    def __reduce__(self) -> Never:
        raise SessionStateError(
            "a storage in memory cannot be pickled: another process would get a copy that nobody "
            "else sees; use local_filesystem_storage or an object store instead"
        )

    @property
    def is_low_latency(self) -> bool:
        """Always."""
        return True

    def default_settings(self) -> StorageSettings:
        """Tell the defaults of a storage in memory."""
        return IN_MEMORY_DEFAULTS.copy()

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        """Fetch an object or a range of it, without copying."""
        stored = self._require(key)
        wanted = resolve(byte_range, len(stored.data))
        require_at_most(max_bytes, wanted, key)
        if wanted.end - wanted.start == len(stored.data):
            return Fetched(stored.data, stored.info)
        return Fetched(memoryview(stored.data)[wanted.start : wanted.end], stored.info)

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        """Fetch several ranges of one object, without copying."""
        data = self._require(key).data
        resolved = [resolve(one, len(data)) for one in ranges]
        return [memoryview(data)[one.start : one.end] for one in resolved]

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Fetch the bytes of one range, without copying."""
        data = self._require(key).data
        end = start + length
        if start == 0 and end == len(data):
            return data
        resolve(Bounded(start, end), len(data))
        return memoryview(data)[start:end]

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        """Write an object under the condition of ``mode``; `Fresh` is a plain put."""
        validate_key(key)
        content = bytes(data)
        with self._lock:
            present = self._objects.get(key)
            match mode:
                case Create() if present is not None:
                    raise PreconditionFailedError(f"{key}: created, but it is there already")
                case UpdateIfMatch(version) if present is None or present.info.version != version:
                    raise PreconditionFailedError(
                        f"{key}: updated, but it changed since it was read"
                    )
            return self._store(key, content)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; what is absent is not an error."""
        checked = list(keys)
        for key in checked:
            validate_key(key)
        with self._lock:
            for key in checked:
                self._objects.pop(key, None)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix`` as they were when the listing began."""
        validate_list_prefix(prefix)
        with self._lock:
            infos = [one.info for key, one in self._objects.items() if key.startswith(prefix)]
        # Code points compare like their UTF-8 bytes, so this is the order of the keys' bytes.
        return iter(sorted(infos, key=lambda info: info.key))

    def head(self, key: str) -> ObjectInfo:
        """Tell what is known of one object."""
        return self._require(key).info

    def copy(self, source: str, target: str) -> None:
        """Copy an object, replacing what is at ``target``."""
        validate_key(target)
        data = self._require(source).data
        with self._lock:
            self._store(target, data)

    def _require(self, key: str) -> _StoredObject:
        validate_key(key)
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFoundError(f"{key}: no such object in {self.url}")
        return stored

    def _store(self, key: str, data: bytes) -> Version:
        version = Version(etag=str(next(self._versions)))
        info = ObjectInfo(key, len(data), datetime.now(UTC), version)
        self._objects[key] = _StoredObject(data, info)
        return version
