"""Immutable numpy columns."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Number = TypeVar("Number", bound=np.generic)


def freeze_columns(owner: Any) -> None:
    """Replace each writable column of a frozen dataclass with a read-only view."""
    for field in fields(owner):
        column = getattr(owner, field.name)
        if isinstance(column, np.ndarray) and column.flags.writeable:
            view = column.view()
            view.flags.writeable = False
            object.__setattr__(owner, field.name, view)


def reduce_columns(owner: Any) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a dataclass of columns returns, with columns in few bytes.

    Integers are pickled in the smallest type that holds them, and a repeated value once.
    """
    values = [getattr(owner, field.name) for field in fields(owner)]
    return _restore, (type(owner), [_shrink(value) for value in values])


def _restore(kind: type[Any], values: list[Any]) -> Any:
    return kind(*[value.expand() if isinstance(value, _Shrunk) else value for value in values])


class _Shrunk(NamedTuple):
    """A column of integers: its type and shape, and its values or the value of all entries."""

    dtype: str
    shape: tuple[int, ...]
    values: NDArray[np.integer[Any]] | int

    def expand(self) -> NDArray[np.integer[Any]]:
        dtype = np.dtype(self.dtype)
        if isinstance(self.values, int):
            return np.broadcast_to(np.array(self.values, dtype), self.shape)
        return self.values.astype(dtype, copy=False)


def _shrink(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    low, high = value.min().item(), value.max().item()
    if low == high:
        return _Shrunk(value.dtype.str, value.shape, low)
    dtype = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high))
    if dtype.itemsize >= value.dtype.itemsize:
        return value
    return _Shrunk(value.dtype.str, value.shape, value.astype(dtype))


def make_constant(value: int, num_rows: int, dtype: type[Number]) -> NDArray[Number]:
    """Make a column that repeats one value, stored once."""
    return np.broadcast_to(np.array(value, dtype), (num_rows,))


def to_offsets(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return the offset of each item, followed by the total length."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ends])


def sort_distinct(numbers: NDArray[Number]) -> NDArray[Number]:
    """Return the distinct numbers in order, like `numpy.unique`."""
    # The first call of `numpy.unique` would import `numpy.ma`, which takes 10 ms.
    ordered = np.sort(numbers)
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]
