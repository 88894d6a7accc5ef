"""Immutable numpy columns."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

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
