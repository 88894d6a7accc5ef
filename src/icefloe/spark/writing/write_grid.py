"""Rows on their way into arrays: which cell is theirs, which block of chunks, and its values.

A *block* is the smallest box that has whole chunks of every variable; whoever has all rows of a
block can write it without asking anybody. Pure, but for the arrays that blocks are written to.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.writing.cf_encoding import as_type, encode, missing_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import zarr
    from numpy.typing import NDArray

    from icefloe.errors import InvalidInputError
    from icefloe.spark.reading.axes import Box
    from icefloe.spark.reading.cf_decoding import Coding

BLOCK_COLUMN = "_icefloe_block"


@dataclass(frozen=True, slots=True, eq=False)
class Dimension:
    """One dimension of the table that is written.

    Parameters
    ----------
    name
        Its name, and that of its column.
    labels
        The label of each position, after the write.
    start, stop
        The positions that rows may have.
    block
        How many positions are a block.
    outside
        What to tell somebody whose rows are elsewhere.
    """

    name: str
    labels: pa.Array
    start: int
    stop: int
    block: int
    outside: str

    @property
    def first_block(self) -> int:
        """The number of the first block that has anything of the write."""
        return self.start // self.block

    @property
    def num_blocks(self) -> int:
        """How many blocks have anything of the write."""
        return -(-self.stop // self.block) - self.first_block if self.stop > self.start else 0

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """An array that gets a column.

    Parameters
    ----------
    path
        The array. Where rows have no column for it, it was asked to be left missing.
    axes
        Its dimensions, as numbers of dimensions of the table.
    coding
        How values are stored.
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
        """How many blocks have anything of the write."""
        return prod(one.num_blocks for one in self.dims)

    @property
    def num_cells(self) -> int:
        """How many rows it takes to say something of every cell."""
        return prod(map(len, self.dims))

    def positions(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
        """Find the cell of each row: a position along each dimension, counted from its start.

        Raises
        ------
        InvalidInputError
            If a row has a label that is not there, or outside of what is written.
        """
        found = self._find(rows)
        for one, along in zip(self.dims, found, strict=True):
            if rows[one.name].null_count:
                raise invalid_input(
                    f"column {one.name!r} has nulls, which are no place along a dimension: drop "
                    f"those rows with df.dropna(subset={[one.name]})"
                )
            wrong = np.flatnonzero((along < 0) | (along >= len(one)))
            if len(wrong):
                raise invalid_input(
                    f"rows are outside of what is written, such as that at "
                    f"{self.describe_cell(rows, int(wrong[0]))}: {one.outside}"
                )
        return found

    def route(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Say in which block rows are, -1 for those that are nowhere.

        Whoever gets those finds out with `positions`; an error here would be tried again by Spark.
        """
        found = self._find(rows)
        lengths = np.array([[len(one)] for one in self.dims])
        is_there = ((found >= 0) & (found < lengths)).all(axis=0)
        return np.where(is_there, self.blocks(found), -1)

    def _find(self, rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
        found = np.empty((len(self.dims), len(rows)), np.int64)
        for number, one in enumerate(self.dims):
            column = as_type(rows[one.name], one.labels.type)
            places = pc.index_in(column, value_set=one.labels).fill_null(-1)
            found[number] = places.to_numpy(zero_copy_only=False)
            found[number] -= one.start
        return found

    def blocks(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Say in which block cells are."""
        numbers = np.zeros(positions.shape[1], np.int64)
        for one, along in zip(self.dims, positions, strict=True):
            numbers = numbers * one.num_blocks + (
                (along + one.start) // one.block - one.first_block
            )
        return numbers

    def box(self, block: int) -> Box:
        """Say what of the write is in a block: positions along each dimension."""
        places = np.unravel_index(block, [one.num_blocks for one in self.dims])
        return tuple(
            (
                max(one.start, (one.first_block + int(place)) * one.block),
                min(one.stop, (one.first_block + int(place) + 1) * one.block),
            )
            for one, place in zip(self.dims, places, strict=True)
        )

    def write_block(
        self, block: int, rows: pa.Table, open_array: Callable[[str], zarr.Array[Any]]
    ) -> None:
        """Write the rows of one block; cells without a row become missing.

        Raises
        ------
        InvalidInputError
            If two rows have one cell, or a value does not fit its variable.
        """
        positions = self.positions(rows)
        box = self.box(block)
        shape = tuple(stop - start for start, stop in box)
        inside = [
            along - (start - one.start)
            for along, (start, _), one in zip(positions, box, self.dims, strict=True)
        ]
        cells = np.ravel_multi_index(inside, shape) if shape else np.zeros(len(rows), np.int64)
        order = np.argsort(cells, kind="stable")
        again = np.flatnonzero(np.diff(cells[order]) == 0)
        if len(again):
            raise self.duplicate_cells_error(len(again), rows, int(order[again[0] + 1]))
        for target in self.targets:
            values = self._empty(target, shape)
            if target.coding.name in rows.column_names:
                values.reshape(-1)[cells] = encode(target.coding, rows[target.coding.name])
            _assign(open_array(target.path), target, box, values)

    def clear_block(self, block: int, open_array: Callable[[str], zarr.Array[Any]]) -> None:
        """Make every cell of a block missing, of variables that can say so."""
        box = self.box(block)
        shape = tuple(stop - start for start, stop in box)
        for target in self.targets:
            _assign(open_array(target.path), target, box, self._empty(target, shape))

    def require_complete(self, num_rows: int) -> None:
        """Refuse to leave cells out of variables that cannot say that something is missing."""
        if num_rows == self.num_cells:
            return
        for target in self.targets:
            if missing_value(target.coding) is None:
                raise invalid_input(
                    f"variable {target.coding.name!r} has no _FillValue, and so no way to say that "
                    f"a cell is missing, but there are {num_rows} rows for {self.num_cells} cells "
                    f"({' x '.join(f'{one.name}: {len(one)}' for one in self.dims)}); nothing was "
                    "committed. Give a row for each cell"
                )

    def duplicate_cells_error(self, num_cells: int, rows: pa.Table, row: int) -> InvalidInputError:
        """Make the error of cells that come more than once, such as that of a row."""
        return invalid_input(
            f"{num_cells} cells come more than once, such as that at "
            f"{self.describe_cell(rows, row)}: aggregate the rows, or "
            f"df.dropDuplicates({[one.name for one in self.dims]})"
        )

    def describe_cell(self, rows: pa.Table | pa.RecordBatch, row: int) -> str:
        """Name the cell of a row."""
        return ", ".join(f"{one.name}={rows[one.name][row].as_py()!s}" for one in self.dims)

    @staticmethod
    def _empty(target: Target, shape: tuple[int, ...]) -> NDArray[Any]:
        missing = missing_value(target.coding)
        if missing is None:
            missing = "" if target.coding.dtype.kind in "OTU" else 0
        return np.full(shape, missing, target.coding.dtype)


def _assign(array: zarr.Array[Any], target: Target, box: Box, values: NDArray[Any]) -> None:
    where = tuple(slice(*box[axis]) for axis in target.axes)
    array[where] = values.transpose(target.axes)


def block_length(chunk_lengths: Iterable[int], length: int) -> int:
    """Say how many positions hold whole chunks of every variable."""
    return max(1, min(lcm(*chunk_lengths), max(length, 1)))


def extend_labels(name: str, before: pa.Array, new: pa.Array) -> pa.Array:
    """Put new labels after those that are there, in the order that those have, if any.

    Raises
    ------
    InvalidInputError
        If labels are there already, or would come between others.
    """
    common = new.filter(pc.is_in(new, value_set=before))
    if len(common):
        raise invalid_input(
            f"{len(common)} labels of {name!r} are there already, such as {common[0].as_py()!s}: "
            "rows are appended after them; to write to cells that exist, use mode 'overwrite' "
            "with a region"
        )
    rises, falls = _order(before)
    new = new.take(pc.array_sort_indices(new, order="descending" if falls else "ascending"))
    if len(before) and len(new) and (rises or falls):
        last, first = before[-1].as_py(), new[0].as_py()
        if (first > last) if falls else (first < last):
            raise invalid_input(
                f"label {first!s} of {name!r} would come after {last!s}, out of order: append "
                "what lies beyond it, or overwrite the group"
            )
    return pa.concat_arrays([before, new])


def _order(labels: pa.Array) -> tuple[bool, bool]:
    """Say whether labels rise, and whether they fall; a single one counts as rising."""
    if len(labels) < 2:
        return True, False
    earlier, later = labels[:-1], labels[1:]
    rises = pc.all(pc.less_equal(earlier, later)).as_py()
    falls = pc.all(pc.greater_equal(earlier, later)).as_py()
    return bool(rises), bool(falls and not rises)


def distinct(columns: Sequence[pa.Array]) -> pa.Array:
    """Collect labels, each once."""
    return pc.unique(pa.concat_arrays(columns))
