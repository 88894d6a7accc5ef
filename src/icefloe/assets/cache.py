"""A cache that is bounded in bytes and fetches each thing once, however many ask at a time."""

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
    """Keeps what was used last, up to a number of bytes; with no bytes it keeps nothing.

    Parameters
    ----------
    max_bytes
        How much may be kept.
    size_of
        How many bytes a value takes.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()
        self._loading: dict[K, Future[V]] = {}

    @property
    def nbytes(self) -> int:
        """How many bytes are kept now."""
        return self._nbytes

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return a value, from ``load`` if it is not here; of many who ask, one loads.

        Those who ask while it loads get what it returns, also if that is too large to be kept, or
        what it raises.
        """
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found[0]
            loading = self._loading.get(key)
            if loading is None:
                mine = self._loading[key] = Future[V]()
        if loading is not None:
            return loading.result()
        try:
            value = load()
            self.put(key, value)
        except BaseException as error:
            self._done(key)
            mine.set_exception(error)
            raise
        self._done(key)
        mine.set_result(value)
        return value

    def find(self, key: K) -> V | None:
        """Return a value if it is here."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value; the ones that were not used for longest make room."""
        size = self._size_of(value)
        with self._lock:
            if size > self._max_bytes or key in self._values:
                return
            self._values[key] = value, size
            self._nbytes += size
            while self._nbytes > self._max_bytes:
                _, (_, freed) = self._values.popitem(last=False)
                self._nbytes -= freed

    def _done(self, key: K) -> None:
        with self._lock:
            del self._loading[key]
