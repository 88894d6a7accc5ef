"""Where rows go: the cell of each row, its block of chunks, and the values of a block.

A *block* is the smallest box of whole chunks of every variable: a task with all rows of a block
writes it without coordination. Pure, except for the arrays that blocks are written to.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.writing.cf_encoding import as_type, encode, missing_value

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
    """One dimension of the table that is written; ``labels`` are those after the write.

    Rows may have positions from ``start`` to ``stop``; ``outside`` is the message for others.
    ``block`` is the number of positions per block.
    """

    name: str
    labels: pa.Array
    start: int
    stop: int
    block: int
    outside: str

    @property
    def first_block(self) -> int:
        """Number of the first block of the write."""
        return self.start // self.block

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the write."""
        return -(-self.stop // self.block) - self.first_block if self.stop > self.start else 0

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """An array that is written; its ``axes`` are numbers of dimensions of the table.

    Without a column it is left missing.
    """

    path: str
    axes: tuple[int, ...]
    coding: Coding


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Where rows go; pickles, and holds no secrets."""

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

    def positions(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
        """Return the cell of each row: a position along each dimension, relative to its start.

        Raises if a row has an unknown label, or one outside of what is written.
        """
        found = self._find_positions(rows)
        for dim, along in zip(self.dims, found, strict=True):
            if rows[dim.name].null_count:
                raise invalid_input(
                    f"column {dim.name!r} has nulls, which are no labels of a dimension: drop "
                    f"those rows with df.dropna(subset={[dim.name]})"
                )
            wrong = np.flatnonzero((along < 0) | (along >= len(dim)))
            if len(wrong):
                raise invalid_input(
                    "rows are outside of what is written, such as that at "
                    f"{self.describe_cell(rows, int(wrong[0]))}: {dim.outside}"
                )
        return found

    def route(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the block of each row, -1 for rows outside of the write.

        `positions` reports those in the task that writes; an error here would be retried by Spark.
        """
        found = self._find_positions(rows)
        lengths = np.array([[len(dim)] for dim in self.dims])
        is_inside = ((found >= 0) & (found < lengths)).all(axis=0)
        return np.where(is_inside, self.blocks(found), -1)

    def _find_positions(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
        found = np.empty((len(self.dims), len(rows)), np.int64)
        for number, dim in enumerate(self.dims):
            column = as_type(rows[dim.name], dim.labels.type)
            indices = pc.index_in(column, value_set=dim.labels).fill_null(-1)
            found[number] = indices.to_numpy(zero_copy_only=False)
            found[number] -= dim.start
        return found

    def blocks(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each cell."""
        numbers = np.zeros(positions.shape[1], np.int64)
        for dim, along in zip(self.dims, positions, strict=True):
            numbers = numbers * dim.num_blocks + (along + dim.start) // dim.block - dim.first_block
        return numbers

    def box(self, block: int) -> Box:
        """Return the positions of a block that are part of the write."""
        places = np.unravel_index(block, [dim.num_blocks for dim in self.dims])
        return tuple(
            (
                max(dim.start, (dim.first_block + int(place)) * dim.block),
                min(dim.stop, (dim.first_block + int(place) + 1) * dim.block),
            )
            for dim, place in zip(self.dims, places, strict=True)
        )

    def write_block(self, block: int, rows: pa.Table, arrays: OpenArrays) -> None:
        """Write the rows of one block; cells without a row become missing.

        Raises if two rows have the same cell, or a value does not fit its variable.
        """
        positions = self.positions(rows)
        box = self.box(block)
        shape = tuple(stop - start for start, stop in box)
        inside = [
            along - (start - dim.start)
            for along, (start, _), dim in zip(positions, box, self.dims, strict=True)
        ]
        cells = np.ravel_multi_index(inside, shape) if shape else np.zeros(len(rows), np.int64)
        order = np.argsort(cells, kind="stable")
        again = np.flatnonzero(np.diff(cells[order]) == 0)
        if len(again):
            raise self.duplicate_cells_error(len(again), rows, int(order[again[0] + 1]))
        for target in self.targets:
            values = _make_missing(target, shape)
            if target.coding.name in rows.column_names:
                values.reshape(-1)[cells] = encode(target.coding, rows[target.coding.name])
            _assign(arrays(target.path), target, box, values)

    def clear_block(self, block: int, arrays: OpenArrays) -> None:
        """Make every cell of a block missing."""
        box = self.box(block)
        shape = tuple(stop - start for start, stop in box)
        for target in self.targets:
            _assign(arrays(target.path), target, box, _make_missing(target, shape))

    def require_complete(self, num_rows: int) -> None:
        """Raise if cells are missing from a variable that has no missing value."""
        if num_rows == self.num_cells:
            return
        for target in self.targets:
            if missing_value(target.coding) is None:
                sizes = " x ".join(f"{dim.name}: {len(dim)}" for dim in self.dims)
                raise invalid_input(
                    f"variable {target.coding.name!r} has no _FillValue to mark missing cells, but "
                    f"there are {num_rows} rows for {self.num_cells} cells ({sizes}); nothing was "
                    "committed. Give a row for each cell"
                )

    def duplicate_cells_error(self, num_cells: int, rows: pa.Table, row: int) -> InvalidInputError:
        """Return the error for cells that occur more than once, such as that of a row."""
        return invalid_input(
            f"{num_cells} cells come more than once, such as that at "
            f"{self.describe_cell(rows, row)}: {self._remedy}"
        )

    def duplicate_block_error(self, block: int) -> InvalidInputError:
        """Return the error for a block that several tasks wrote."""
        where = ", ".join(
            f"{dim.name} {dim.labels[start].as_py()!s} to {dim.labels[stop - 1].as_py()!s}"
            for dim, (start, stop) in zip(self.dims, self.box(block), strict=True)
        )
        return invalid_input(
            f"cells come more than once, such as all of {where}; nothing was committed: "
            f"{self._remedy}"
        )

    def describe_cell(self, rows: pa.Table | pa.RecordBatch, row: int) -> str:
        """Return the labels of a row, for messages."""
        return ", ".join(f"{dim.name}={rows[dim.name][row].as_py()!s}" for dim in self.dims)

    @property
    def _remedy(self) -> str:
        names = [dim.name for dim in self.dims]
        return f"aggregate the rows, or df.dropDuplicates({names})"


def choose_block_length(chunk_lengths: Iterable[int], length: int) -> int:
    """Return the smallest number of positions that is whole chunks of every variable."""
    return max(1, min(lcm(*chunk_lengths), max(length, 1)))


def extend_labels(name: str, before: pa.Array, new: pa.Array) -> pa.Array:
    """Append new labels to existing ones, in the order of those, if they have one.

    Raises if labels exist already, or would break the order.
    """
    common = new.filter(pc.is_in(new, value_set=before))
    if len(common):
        raise invalid_input(
            f"{len(common)} labels of {name!r} are there already, such as {common[0].as_py()!s}: "
            "rows are appended after them; to write to existing cells, use mode 'overwrite' with a "
            "region"
        )
    is_ascending, is_descending = _find_order(before)
    order = "descending" if is_descending else "ascending"
    new = new.take(pc.array_sort_indices(new, order=order))
    if len(before) and len(new) and (is_ascending or is_descending):
        last, first = before[-1].as_py(), new[0].as_py()
        if (first > last) if is_descending else (first < last):
            raise invalid_input(
                f"label {first!s} of {name!r} would come after {last!s}, out of order: append "
                "labels beyond it, or overwrite the group"
            )
    return pa.concat_arrays([before, new])


def find_distinct(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the distinct values of columns."""
    return pc.unique(pa.concat_arrays(columns))


def _find_order(labels: pa.Array) -> tuple[bool, bool]:
    """Return whether labels ascend, and whether they descend; a single one ascends."""
    if len(labels) < 2:
        return True, False
    earlier, later = labels[:-1], labels[1:]
    is_ascending = bool(pc.all(pc.less_equal(earlier, later)).as_py())
    is_descending = bool(pc.all(pc.greater_equal(earlier, later)).as_py())
    return is_ascending, is_descending and not is_ascending


def _make_missing(target: Target, shape: tuple[int, ...]) -> NDArray[Any]:
    missing = missing_value(target.coding)
    if missing is None:
        missing = "" if target.coding.dtype.kind in "OTU" else 0
    return np.full(shape, missing, target.coding.dtype)


def _assign(array: zarr.Array[Any], target: Target, box: Box, values: NDArray[Any]) -> None:
    where = tuple(slice(*box[axis]) for axis in target.axes)
    array[where] = values.transpose(target.axes)
