"""A sequence whose items are made when they are accessed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, overload

Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """An immutable sequence that compares and pickles as a tuple of its items."""

    __slots__ = ()

    @abstractmethod
    def get_item(self, row: int) -> Item:
        """Return the item in a row."""

    def get_range(self, start: int, stop: int) -> Sequence[Item]:
        """Return the items in consecutive rows."""
        return [self.get_item(row) for row in range(start, stop)]

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        if not isinstance(index, slice):
            return self.get_item(range(len(self))[index])
        start, stop, step = index.indices(len(self))
        return tuple(self.get_range(start, max(start, stop)) if step == 1 else tuple(self)[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazySequence | tuple):
            return NotImplemented
        return len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)
