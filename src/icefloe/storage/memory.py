"""Storage in the memory of one process, for tests and temporary repositories.

It supports the complete interface, including compare-and-swap. Pickling raises, because a copy in
another process would be a separate repository.
"""

from __future__ import annotations

import threading
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


class MemoryStorage(Storage):
    """Objects in a dictionary, guarded by a lock."""

    def __init__(self) -> None:
        self._objects: dict[str, Fetched] = {}
        self._lock = threading.Lock()
        # Shared by all keys: no two puts ever create the same version.
        self._versions = count(1)

    @property
    def url(self) -> str:
        return "memory://"

    def __repr__(self) -> str:
        return f"MemoryStorage(<{len(self._objects)} objects>)"

    def __reduce__(self) -> Never:
        raise SessionStateError(
            "an in-memory storage cannot be pickled, because another process would get a separate "
            "copy: use local_filesystem_storage or an object store instead"
        )

    @property
    def is_low_latency(self) -> bool:
        return True

    def default_settings(self) -> StorageSettings:
        return IN_MEMORY_DEFAULTS.copy()

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        stored = self._get_object(key)
        resolved = resolve(byte_range, len(stored.data))
        require_at_most(max_bytes, resolved, key)
        if resolved.end - resolved.start == len(stored.data):
            return stored
        return Fetched(memoryview(stored.data)[resolved.start : resolved.end], stored.info)

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        data = self._get_object(key).data
        resolved = [resolve(byte_range, len(data)) for byte_range in ranges]
        return [memoryview(data)[part.start : part.end] for part in resolved]

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        data = self._get_object(key).data
        end = start + length
        if start == 0 and end == len(data):
            return data
        resolve(Bounded(start, end), len(data))
        return memoryview(data)[start:end]

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        validate_key(key)
        content = bytes(data)
        with self._lock:
            current = self._objects.get(key)
            match mode:
                case Create() if current is not None:
                    raise PreconditionFailedError(f"{key}: not created, it already exists")
                case UpdateIfMatch(version) if current is None or current.info.version != version:
                    raise PreconditionFailedError(
                        f"{key}: not updated, it changed since it was read"
                    )
            return self._store(key, content)

    def delete_many(self, keys: Iterable[str]) -> None:
        all_keys = list(keys)
        for key in all_keys:
            validate_key(key)
        with self._lock:
            for key in all_keys:
                self._objects.pop(key, None)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix`` as of the start of the listing."""
        validate_list_prefix(prefix)
        with self._lock:
            infos = [stored.info for key, stored in self._objects.items() if key.startswith(prefix)]
        # Strings sort by code point, which is the order of their UTF-8 bytes.
        return iter(sorted(infos, key=lambda info: info.key))

    def head(self, key: str) -> ObjectInfo:
        return self._get_object(key).info

    def read_clock(self, fresh_key: str | None = None) -> datetime:  # noqa: ARG002
        return datetime.now(UTC)

    def copy(self, source: str, target: str) -> None:
        validate_key(target)
        data = self._get_object(source).data
        with self._lock:
            self._store(target, data)

    def _get_object(self, key: str) -> Fetched:
        validate_key(key)
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFoundError(f"object not found: {key} in {self.url}")
        return stored

    def _store(self, key: str, data: bytes | memoryview) -> Version:
        version = Version(etag=str(next(self._versions)))
        info = ObjectInfo(key, len(data), datetime.now(UTC), version)
        self._objects[key] = Fetched(data, info)
        return version
