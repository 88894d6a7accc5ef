"""Auxiliary variables of an append: they grow with the table, but have no value per row.

In a table over time, lat and lon, ``day(time)`` is a column whose values depend only on the time,
and ``time_bnds(time, bnds)`` is a column of arrays. Auxiliary variables are small compared to the
table, and are written at preparation, before tasks run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import input_error
from icefloe.spark.writing.cf_encoding import encode, get_fill, require_fill, require_writable
from icefloe.spark.writing.write_grid import Dimension, Grid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from icefloe.spark.reading.cf_decoding import Coding
    from icefloe.spark.reading.group import Variable


@dataclass(frozen=True, slots=True, eq=False)
class AuxiliaryVariable:
    """A variable that is not part of the table.

    ``shared`` are the dimensions that the table also has; ``own`` are the lengths of the others,
    for which the values of its column are arrays.
    """

    variable: Variable
    coding: Coding
    shared: tuple[str, ...]
    own: tuple[int, ...]

    @classmethod
    def make(cls, variable: Variable, coding: Coding, dims: tuple[str, ...]) -> AuxiliaryVariable:
        """Make the auxiliary variable of a table with dimensions ``dims``."""
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
        """Type of the column, for messages."""
        if not self.own:
            return str(self.coding.type)
        return f"arrays of {prod(self.own)} {self.coding.type}"

    def require_writable(self, column_type: pa.DataType) -> None:
        """Raise if a column of a type cannot be written to the variable."""
        if len(self.own) > 1:
            raise input_error(
                f"variable {self.name!r} has {len(self.own)} dimensions that the table does not "
                "have, and at most one is supported: add it to the option 'leave_missing', or "
                "append with xarray"
            )
        if self.own:
            if not _is_list(column_type):
                raise input_error(f"column {self.name!r}: expected {self.type}, got {column_type}")
            column_type = column_type.value_type
        require_writable(self.coding, column_type)

    def encode_rows(self, rows: pa.Table, dims: Mapping[str, Dimension]) -> NDArray[Any]:
        """Encode the new part of the variable, in the order of its dimensions.

        Raises if rows of a cell differ, or cells without a row have no missing value.
        """
        grid = Grid(tuple(dims[name] for name in self.shared), ())
        shape = tuple(len(dims[name]) for name in self.shared)
        cells = np.ravel_multi_index(list(grid.find_positions(rows)), shape)
        stored = self._encode(rows, grid)
        missing = get_fill(self.coding)
        if missing is None and len(np.unique(cells)) < prod(shape):
            raise input_error(
                f"variable {self.name!r} has no _FillValue for missing values, but the rows do not "
                f"cover it along {', '.join(self.shared)}"
            )
        values = np.empty((prod(shape), stored.shape[1]), self.coding.dtype)
        values[:] = "" if self.coding.dtype.kind in "OTU" else 0
        if missing is not None:
            values[:] = missing
        values[cells] = stored
        written = values[cells]
        differs = (written != stored) & ~((written != written) & (stored != stored))  # noqa: PLR0124 - NaN
        if differs.any():
            row = int(np.flatnonzero(differs.any(axis=1))[0])
            raise input_error(
                f"column {self.name!r} has different values at {grid.describe_cell(rows, row)}, "
                f"but the variable varies only along {', '.join(self.variable.dims)}"
            )
        order = [*self.shared, *(name for name in self.variable.dims if name not in self.shared)]
        axes = [order.index(name) for name in self.variable.dims]
        return values.reshape(*shape, *self.own).transpose(axes)

    def make_missing(self, length: int, along: str) -> NDArray[Any]:
        """Return missing values for the new part; raise if the variable has no missing value."""
        require_fill(self.coding)
        shape = tuple(
            length if name == along else size
            for name, size in zip(self.variable.dims, self.variable.shape, strict=True)
        )
        return np.full(shape, get_fill(self.coding), self.coding.dtype)

    def _encode(self, rows: pa.Table, grid: Grid) -> NDArray[Any]:
        column = rows[self.name].combine_chunks()
        if not self.own:
            return encode(self.coding, column)[:, np.newaxis]
        lengths = pc.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self.own[0])
        if len(wrong):
            row = int(wrong[0])
            raise input_error(
                f"column {self.name!r}: expected {self.type}, got {column[row].as_py()} at "
                f"{grid.describe_cell(rows, row)}"
            )
        return encode(self.coding, column.flatten()).reshape(len(column), self.own[0])


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
