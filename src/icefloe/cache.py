"""A cache that is bounded in bytes and fetches each thing once, however many ask at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
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
        self._loading: dict[K, threading.Lock] = {}

    @property
    def nbytes(self) -> int:
        """How many bytes are kept now."""
        return self._nbytes

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return a value, from ``load`` if it is not here; of many who ask, one loads."""
        found = self._find(key)
        if found is not None:
            return found[0]
        with self._lock:
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            found = self._find(key)
            if found is not None:
                return found[0]
            try:
                value = load()
                self.put(key, value)
            finally:
                with self._lock:
                    self._loading.pop(key, None)
        return value

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

    def _find(self, key: K) -> tuple[V, int] | None:
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found
