"""The grid of a write: the cell and the block of each row, and the values of each block.

A *block* is the smallest box that consists of complete chunks of every variable: a task with all
rows of a block writes it without coordination. Pure, except for writing blocks to arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import input_error
from icefloe.spark.writing.cf_encoding import cast_column, encode, get_fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import zarr
    from numpy.typing import NDArray

    from icefloe.errors import InvalidInputError
    from icefloe.spark.reading.axes import Box
    from icefloe.spark.reading.cf_decoding import Coding
    from icefloe.store.open_array import OpenArrays

BLOCK_COLUMN: Final = "_icefloe_block"


@dataclass(frozen=True, slots=True, eq=False)
class Dimension:
    """One dimension of a write; ``labels`` are all of its labels after the write.

    The write covers positions from ``start`` to ``stop`` (exclusive); ``advice`` ends the error
    message for other rows. ``block_length`` is the number of positions per block.
    """

    name: str
    labels: pa.Array
    start: int
    stop: int
    block_length: int
    advice: str

    @property
    def first_block(self) -> int:
        """Index of the first block of the write, counted from position 0."""
        return self.start // self.block_length

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the write."""
        return -(-self.stop // self.block_length) - self.first_block if len(self) else 0

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """An array to write; ``axes`` are the indices of its dimensions in `Grid.dims`.

    If the rows have no column for the array, missing values are written.
    """

    path: str
    axes: tuple[int, ...]
    coding: Coding


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Dimensions and arrays of a write. The pickle contains no credentials."""

    dims: tuple[Dimension, ...]
    targets: tuple[Target, ...]

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the write."""
        return prod(dim.num_blocks for dim in self.dims)

    @property
    def num_cells(self) -> int:
        """Number of cells of the write."""
        return prod(map(len, self.dims))

    def find_positions(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
        """Return a row for each dimension with the positions of ``rows``, relative to its start.

        Raises if a label is null, unknown or outside the write.
        """
        positions = self._match_labels(rows)
        for dim, dim_positions in zip(self.dims, positions, strict=True):
            if rows[dim.name].null_count:
                raise input_error(
                    f"dimension column {dim.name!r} contains nulls: drop those rows with "
                    f"df.dropna(subset={[dim.name]})"
                )
            outside = np.flatnonzero((dim_positions < 0) | (dim_positions >= len(dim)))
            if len(outside):
                raise input_error(
                    "rows are outside the write, such as the row at "
                    f"{self.describe_cell(rows, int(outside[0]))}: {dim.advice}"
                )
        return positions

    def route(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the block of each row, -1 for rows outside the write.

        The task that writes those rows raises: Spark would retry an exception here.
        """
        positions = self._match_labels(rows)
        lengths = np.array([[len(dim)] for dim in self.dims])
        is_inside = ((positions >= 0) & (positions < lengths)).all(axis=0)
        return np.where(is_inside, self._number_blocks(positions), -1)

    def find_blocks(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return the block of each row; raise if a row is outside the write."""
        return self._number_blocks(self.find_positions(rows))

    def _match_labels(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
        positions = np.empty((len(self.dims), len(rows)), np.int64)
        for axis, dim in enumerate(self.dims):
            column = cast_column(rows[dim.name], dim.labels.type)
            indices = pc.index_in(column, value_set=dim.labels).fill_null(-1)
            positions[axis] = indices.to_numpy(zero_copy_only=False)
            positions[axis] -= dim.start
        return positions

    def _number_blocks(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = np.zeros(positions.shape[1], np.int64)
        for dim, dim_positions in zip(self.dims, positions, strict=True):
            dim_blocks = (dim_positions + dim.start) // dim.block_length - dim.first_block
            numbers = numbers * dim.num_blocks + dim_blocks
        return numbers

    def get_box(self, block: int) -> Box:
        """Return the positions of a block that are part of the write."""
        indices = np.unravel_index(block, [dim.num_blocks for dim in self.dims])
        return tuple(
            (
                max(dim.start, (dim.first_block + int(index)) * dim.block_length),
                min(dim.stop, (dim.first_block + int(index) + 1) * dim.block_length),
            )
            for dim, index in zip(self.dims, indices, strict=True)
        )

    def write_block(self, block: int, rows: pa.Table, arrays: OpenArrays) -> None:
        """Write the rows of one block; cells without a row become missing.

        Raises if a row is outside the write, two rows share a cell, or a value does not fit.
        """
        positions = self.find_positions(rows)
        box = self.get_box(block)
        shape = tuple(stop - start for start, stop in box)
        indices = [
            dim_positions - (start - dim.start)
            for dim_positions, (start, _), dim in zip(positions, box, self.dims, strict=True)
        ]
        cells = np.ravel_multi_index(indices, shape) if shape else np.zeros(len(rows), np.int64)
        order = np.argsort(cells, kind="stable")
        duplicates = np.flatnonzero(np.diff(cells[order]) == 0)
        if len(duplicates):
            raise self.duplicate_cells_error(len(duplicates), rows, int(order[duplicates[0] + 1]))
        for target in self.targets:
            values = _make_missing(target, shape)
            if target.coding.name in rows.column_names:
                values.reshape(-1)[cells] = encode(target.coding, rows[target.coding.name])
            _assign(arrays(target.path), target, box, values)

    def clear_block(self, block: int, arrays: OpenArrays) -> None:
        """Write missing values to all cells of a block."""
        box = self.get_box(block)
        shape = tuple(stop - start for start, stop in box)
        for target in self.targets:
            _assign(arrays(target.path), target, box, _make_missing(target, shape))

    def require_complete(self, num_rows: int) -> None:
        """Raise if rows with distinct cells leave gaps and a variable has no missing value."""
        if num_rows == self.num_cells:
            return
        for target in self.targets:
            if get_fill(target.coding) is None:
                sizes = " x ".join(f"{dim.name}: {len(dim)}" for dim in self.dims)
                raise input_error(
                    f"variable {target.coding.name!r} has no _FillValue for missing cells, but "
                    f"there are {num_rows} rows for {self.num_cells} cells ({sizes}); nothing was "
                    "committed: add a row for each cell"
                )

    def duplicate_cells_error(self, num_rows: int, rows: pa.Table, row: int) -> InvalidInputError:
        """Make the error for rows whose cell another row has, with one of them as an example."""
        return input_error(
            f"{num_rows} rows too many: cells occur more than once, such as "
            f"{self.describe_cell(rows, row)}: {self._remedy}"
        )

    def duplicate_block_error(self, block: int) -> InvalidInputError:
        """Make the error for a block that several tasks wrote."""
        labels = ", ".join(
            f"{dim.name} {dim.labels[start].as_py()!s} to {dim.labels[stop - 1].as_py()!s}"
            for dim, (start, stop) in zip(self.dims, self.get_box(block), strict=True)
        )
        return input_error(
            f"cells occur more than once, such as all cells of {labels}; nothing was committed: "
            f"{self._remedy}"
        )

    def describe_cell(self, rows: pa.Table | pa.RecordBatch, row: int) -> str:
        """Return the labels of a row, for messages."""
        return ", ".join(f"{dim.name}={rows[dim.name][row].as_py()!s}" for dim in self.dims)

    @property
    def _remedy(self) -> str:
        names = [dim.name for dim in self.dims]
        return f"aggregate the rows, or drop duplicates with df.dropDuplicates({names})"


def choose_block_length(chunk_lengths: Iterable[int], length: int) -> int:
    """Return the least common multiple of the chunk lengths, limited to ``length``."""
    return max(1, min(lcm(*chunk_lengths), max(length, 1)))


def extend_labels(name: str, existing: pa.Array, new: pa.Array) -> pa.Array:
    """Append new labels to existing ones, sorted in the same direction (by default ascending).

    Raises if labels already exist, or if sorted labels would no longer be sorted.
    """
    common = new.filter(pc.is_in(new, value_set=existing))
    if len(common):
        raise input_error(
            f"{len(common)} labels of {name!r} already exist, such as {common[0].as_py()!s}: "
            "append only new labels; to write to existing cells, use mode 'overwrite' with a region"
        )
    is_ascending, is_descending = _find_order(existing)
    order = "descending" if is_descending else "ascending"
    new = new.take(pc.array_sort_indices(new, order=order))
    if len(existing) and len(new) and (is_ascending or is_descending):
        last, first = existing[-1].as_py(), new[0].as_py()
        if (first > last) if is_descending else (first < last):
            raise input_error(
                f"label {first!s} of {name!r} is out of order: append labels that come after "
                f"{last!s}, or overwrite the group"
            )
    return pa.concat_arrays([existing, new])


def find_distinct(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the distinct values of columns."""
    return pc.unique(pa.concat_arrays(columns))


def _find_order(labels: pa.Array) -> tuple[bool, bool]:
    """Return whether labels ascend and whether they descend; fewer than two ascend."""
    if len(labels) < 2:
        return True, False
    earlier, later = labels[:-1], labels[1:]
    is_ascending = bool(pc.all(pc.less_equal(earlier, later)).as_py())
    is_descending = bool(pc.all(pc.greater_equal(earlier, later)).as_py())
    return is_ascending, is_descending and not is_ascending


def _make_missing(target: Target, shape: tuple[int, ...]) -> NDArray[Any]:
    """Make an array of missing values; of zeros or empty strings if the variable has none."""
    missing = get_fill(target.coding)
    if missing is None:  # then `Grid.require_complete` requires a row for each cell
        missing = "" if target.coding.dtype.kind in "OTU" else 0
    return np.full(shape, missing, target.coding.dtype)


def _assign(array: zarr.Array[Any], target: Target, box: Box, values: NDArray[Any]) -> None:
    """Write values, whose axes are those of the grid, to an array."""
    region = tuple(slice(*box[axis]) for axis in target.axes)
    array[region] = values.transpose(target.axes)
