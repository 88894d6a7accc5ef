"""A storage that counts what is asked of another one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from icefloe.storage import Overwrite, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.byte_range import Bounded, ByteRange
    from icefloe.model.storage_settings import StorageSettings
    from icefloe.storage import Fetched, ObjectInfo, PutMode, Version


class CountingStorage(Storage):
    """Counts requests by verb and key; what is deleted or copied counts once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.requests: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self._storage.url

    def default_settings(self) -> StorageSettings:
        return self._storage.default_settings()

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        self.requests[f"get {key}"] += 1
        return self._storage.get(key, byte_range, max_bytes=max_bytes)

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        self.requests[f"get {key}"] += 1
        return self._storage.get_ranges(key, ranges)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        self.requests[f"put {key}"] += 1
        return self._storage.put(key, data, mode)

    def delete_many(self, keys: Iterable[str]) -> None:
        self.requests["delete"] += 1
        self._storage.delete_many(keys)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.requests[f"list {prefix}"] += 1
        return self._storage.list(prefix)

    def head(self, key: str) -> ObjectInfo:
        self.requests[f"head {key}"] += 1
        return self._storage.head(key)

    def copy(self, source: str, target: str) -> None:
        self.requests[f"copy {source}"] += 1
        self._storage.copy(source, target)
