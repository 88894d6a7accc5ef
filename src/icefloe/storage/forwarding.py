"""A storage that forwards every call to another one, with a hook for each request.

Subclasses that delay, count or fail requests override `_intercept` and `_intercept_async`. Every
request passes through one of them exactly once.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from icefloe.storage.interface import (
    AbandonedUploads,
    Fetched,
    ObjectInfo,
    Overwrite,
    PutMode,
    Storage,
    Version,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from icefloe.model.byte_range import Bounded, ByteRange
    from icefloe.model.storage_settings import StorageSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a storage method: its name, its keys or prefix, and the bytes it sends."""

    name: str
    keys: tuple[str, ...]
    bytes_sent: int = 0

    @property
    def is_write(self) -> bool:
        """Whether the request changes objects."""
        return self.name in {"put", "put_async", "delete_many", "copy", "copy_from"}


class ForwardingStorage(Storage):
    """Forwards calls to ``inner`` through `_intercept` or `_intercept_async`."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    @property
    def inner(self) -> Storage:
        """The wrapped storage."""
        return self._inner

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:  # noqa: ARG002 - for subclasses
        return run()

    async def _intercept_async(
        self,
        request: Request,  # noqa: ARG002 - for subclasses
        run: Callable[[], Awaitable[T]],
    ) -> T:
        return await run()

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def store_root_url(self) -> str | None:
        return self._inner.store_root_url

    @property
    def read_only(self) -> bool:
        return self._inner.read_only

    @property
    def is_low_latency(self) -> bool:
        return self._inner.is_low_latency

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    def default_settings(self) -> StorageSettings:
        return self._inner.default_settings()

    def with_settings(self, settings: StorageSettings) -> Self:
        clone = copy.copy(self)
        clone._inner = self._inner.with_settings(settings)  # noqa: SLF001 - a private attribute of the same class
        return clone

    def with_user_agent(self, user_agent: str) -> Self:
        clone = copy.copy(self)
        clone._inner = self._inner.with_user_agent(user_agent)  # noqa: SLF001 - a private attribute of the same class
        return clone

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int | None = None
    ) -> Fetched:
        return self._intercept(
            Request("get", (key,)), lambda: self._inner.get(key, byte_range, max_bytes=max_bytes)
        )

    def get_if_changed(
        self, key: str, version: Version, *, max_bytes: int | None = None
    ) -> Fetched | None:
        return self._intercept(
            Request("get_if_changed", (key,)),
            lambda: self._inner.get_if_changed(key, version, max_bytes=max_bytes),
        )

    def get_ranges(self, key: str, ranges: Sequence[Bounded]) -> list[bytes | memoryview]:
        return self._intercept(
            Request("get_ranges", (key,)), lambda: self._inner.get_ranges(key, ranges)
        )

    def get_bytes(self, key: str, start: int, length: int) -> bytes | memoryview:
        return self._intercept(
            Request("get_bytes", (key,)), lambda: self._inner.get_bytes(key, start, length)
        )

    async def get_bytes_async(self, key: str, start: int, length: int) -> bytes | memoryview:
        return await self._intercept_async(
            Request("get_bytes_async", (key,)),
            lambda: self._inner.get_bytes_async(key, start, length),
        )

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        request = Request("put", (key,), memoryview(data).nbytes)
        return self._intercept(request, lambda: self._inner.put(key, data, mode))

    async def put_async(self, key: str, data: bytes | memoryview) -> Version:
        request = Request("put_async", (key,), memoryview(data).nbytes)
        return await self._intercept_async(request, lambda: self._inner.put_async(key, data))

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; one `Request`, regardless of their number."""
        all_keys = tuple(keys)
        self._intercept(Request("delete_many", all_keys), lambda: self._inner.delete_many(all_keys))

    def head(self, key: str) -> ObjectInfo:
        return self._intercept(Request("head", (key,)), lambda: self._inner.head(key))

    def read_clock(self, fresh_key: str | None = None) -> datetime:
        if self._inner.is_low_latency:
            return self._inner.read_clock(fresh_key)  # not intercepted: it sends no request
        return super().read_clock(fresh_key)

    def copy(self, source: str, target: str) -> None:
        self._intercept(Request("copy", (source, target)), lambda: self._inner.copy(source, target))

    def copy_from(self, source: Storage, source_key: str, key: str) -> bool:
        """Copy an object of another storage, which may forward too; one `Request`."""
        inner_source = source.inner if isinstance(source, ForwardingStorage) else source
        return self._intercept(
            Request("copy_from", (key,)),
            lambda: self._inner.copy_from(inner_source, source_key, key),
        )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects below ``prefix``.

        One `Request`, intercepted when `list` is called, however many pages are then read.
        """
        return self._intercept(Request("list", (prefix,)), lambda: self._inner.list(prefix))

    def list_first(self, prefix: str, limit: int) -> Sequence[ObjectInfo]:
        return self._intercept(
            Request("list_first", (prefix,)), lambda: self._inner.list_first(prefix, limit)
        )

    def flush_fresh(self) -> None:
        self._inner.flush_fresh()  # not intercepted: it sends no request

    def delete_abandoned_uploads(
        self, *, before: datetime, dry_run: bool = False
    ) -> AbandonedUploads:
        # Not intercepted: it sends no request, because only local file systems have abandoned
        # uploads.
        return self._inner.delete_abandoned_uploads(before=before, dry_run=dry_run)
