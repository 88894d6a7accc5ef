"""LRU cache, bounded in bytes, with single-flight loading."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """LRU cache of at most ``max_bytes``; ``size_of`` returns the size of a value in bytes.

    ``report_too_large`` is called once, with the first value that does not fit, unless the cache is
    off.
    """

    def __init__(
        self,
        max_bytes: int,
        size_of: Callable[[V], int],
        report_too_large: Callable[[V], None] | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._report_too_large = report_too_large
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()
        self._loading: dict[K, Future[V]] = {}

    @property
    def nbytes(self) -> int:
        """The size of all cached values, in bytes."""
        return self._nbytes

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return a value, from ``load`` if it is not cached.

        Single-flight: concurrent callers share one load and its value or error, even if the value
        is too large to cache.
        """
        with self._lock:
            entry = self._values.get(key)
            if entry is not None:
                self._values.move_to_end(key)
                return entry[0]
            loading = self._loading.get(key)
            if loading is None:
                future = self._loading[key] = Future[V]()
        if loading is not None:
            return loading.result()
        try:
            value = load()
            self.put(key, value)
        except BaseException as error:
            self._end_load(key)
            future.set_exception(error)
            raise
        self._end_load(key)
        future.set_result(value)
        return value

    def find(self, key: K) -> V | None:
        """Return a value if it is cached, else None."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Cache a value; evict the least recently used values if the cache is full."""
        size = self._size_of(value)
        if size > self._max_bytes:
            report, self._report_too_large = self._report_too_large, None
            if report is not None and self._max_bytes:  # else it is meant to keep nothing
                report(value)
            return
        with self._lock:
            if key in self._values:
                return
            self._values[key] = value, size
            self._nbytes += size
            while self._nbytes > self._max_bytes:
                _, (_, evicted_bytes) = self._values.popitem(last=False)
                self._nbytes -= evicted_bytes

    def update_size(self, key: K) -> None:
        """Measure a cached value again, after it changed; evict values if the cache is full."""
        with self._lock:
            value, old_size = self._values.pop(key, (None, 0))
            self._nbytes -= old_size
        if value is not None:
            self.put(key, value)

    def _end_load(self, key: K) -> None:
        with self._lock:
            del self._loading[key]
