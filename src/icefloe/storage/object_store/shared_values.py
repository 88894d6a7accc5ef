"""A bounded table of values that all storages of a process share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class SharedValues(Generic[T]):
    """The most recently used values, by key; each is made once, also by concurrent threads.

    Values that are dropped stay valid for those who have them.
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self.clear()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made with ``make`` if it is missing."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            else:
                self._values[key] = make()
                if len(self._values) > self._max_values:
                    self._values.popitem(last=False)
            return self._values[key]

    def clear(self) -> None:
        """Drop all values, and the lock, which a forked process may have inherited held."""
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()


class Identity:
    """A key that equals only keys of the same object, which it keeps alive."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
