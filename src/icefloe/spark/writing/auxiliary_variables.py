"""Auxiliary variables of an append: they grow with the table, but have no value per row.

``day(time)`` beside a table over time, lat and lon is a column whose value depends on the time
only. ``time_bnds(time, bnds)`` is a column of arrays. They are small compared to the table, and
their chunks are not those of its blocks: they are written when the write is prepared.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.writing.cf_encoding import encode, missing_value, require_fill, require_writable
from icefloe.spark.writing.write_grid import Dimension, Grid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from icefloe.spark.reading.cf_decoding import Coding
    from icefloe.spark.reading.group import Variable


@dataclass(frozen=True, slots=True, eq=False)
class AuxiliaryVariable:
    """A variable that is not part of the table.

    ``shared`` are its dimensions that the table has; ``own`` are the lengths of the others, which
    are arrays in its column.
    """

    variable: Variable
    coding: Coding
    shared: tuple[str, ...]
    own: tuple[int, ...]

    @classmethod
    def of(cls, variable: Variable, coding: Coding, dims: tuple[str, ...]) -> AuxiliaryVariable:
        """Return the variable beside a table with some dimensions."""
        lengths = dict(zip(variable.dims, variable.shape, strict=True))
        return cls(
            variable,
            coding,
            tuple(name for name in variable.dims if name in dims),
            tuple(length for name, length in lengths.items() if name not in dims),
        )

    @property
    def name(self) -> str:
        """Name of the variable and of its column."""
        return self.variable.name

    @property
    def type(self) -> str:
        """Type of its column, for messages."""
        if not self.own:
            return str(self.coding.type)
        return f"arrays of {prod(self.own)} {self.coding.type}"

    def require_writable(self, given: pa.DataType) -> None:
        """Raise if a column of a type cannot be written to the variable."""
        if len(self.own) > 1:
            raise invalid_input(
                f"variable {self.name!r} has {len(self.own)} dimensions that the table does not "
                "have, more than a column can hold: name it in the option 'leave_missing', or "
                "append with xarray"
            )
        if self.own:
            if not _is_list(given):
                raise invalid_input(
                    f"column {self.name!r} is {given}, and the variable has {self.type}"
                )
            given = given.value_type
        require_writable(self.coding, given)

    def encode_rows(self, rows: pa.Table, dims: Mapping[str, Dimension]) -> NDArray[Any]:
        """Return the stored values of the new part, in the order of the variable's dimensions.

        Raises if rows disagree, or cells are missing from a variable without a missing value.
        """
        grid = Grid(tuple(dims[name] for name in self.shared), ())
        shape = tuple(len(dims[name]) for name in self.shared)
        cells = np.ravel_multi_index(list(grid.positions(rows)), shape)
        stored = self._encode(rows, grid)
        missing = missing_value(self.coding)
        if missing is None and len(np.unique(cells)) < prod(shape):
            raise invalid_input(
                f"variable {self.name!r} has no _FillValue to mark missing values, and the rows do "
                f"not have all of it along {', '.join(self.shared)}"
            )
        whole = np.empty((prod(shape), stored.shape[1]), self.coding.dtype)
        whole[:] = "" if self.coding.dtype.kind in "OTU" else 0
        if missing is not None:
            whole[:] = missing
        whole[cells] = stored
        differs = (whole[cells] != stored) & ~((whole[cells] != whole[cells]) & (stored != stored))  # noqa: PLR0124 - NaN
        if differs.any():
            row = int(np.flatnonzero(differs.any(axis=1))[0])
            raise invalid_input(
                f"column {self.name!r} has several values at {grid.describe_cell(rows, row)}, but "
                f"the variable varies only along {', '.join(self.variable.dims)}"
            )
        order = [*self.shared, *(name for name in self.variable.dims if name not in self.shared)]
        axes = [order.index(name) for name in self.variable.dims]
        return whole.reshape(*shape, *self.own).transpose(axes)

    def make_missing(self, length: int, along: str) -> NDArray[Any]:
        """Return missing values for a new part; raise if the variable has no missing value."""
        require_fill(self.coding)
        shape = tuple(
            length if name == along else size
            for name, size in zip(self.variable.dims, self.variable.shape, strict=True)
        )
        return np.full(shape, missing_value(self.coding), self.coding.dtype)

    def _encode(self, rows: pa.Table, grid: Grid) -> NDArray[Any]:
        column = rows[self.name].combine_chunks()
        if not self.own:
            return encode(self.coding, column)[:, np.newaxis]
        lengths = pc.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self.own[0])
        if len(wrong):
            row = int(wrong[0])
            raise invalid_input(
                f"column {self.name!r} has {self.type}, and not {column[row].as_py()} as at "
                f"{grid.describe_cell(rows, row)}"
            )
        return encode(self.coding, column.flatten()).reshape(len(column), self.own[0])


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
