"""A group as a table of rows: one column of labels per dimension and one column per variable.

The plan is a grid of blocks and the coding of each column, independent of Spark. A task reads boxes
of blocks, decodes each variable once, and slices Arrow batches, without Python work per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.spark.option_parsing import input_error
from icefloe.spark.reading.axes import Axis, Box, Edges, RegularEdges, iter_boxes, iter_pieces
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.spark.reading.group import Group, Variable, get_chunk_edges
from icefloe.spark.reading.partitions import MAX_BYTES_IN_MEMORY, choose_target_bytes, split_evenly
from icefloe.spark.reading.selections import require_selectable, select
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import zarr
    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource

    Indexer = slice | NDArray[np.int64]

_BATCH_ROWS: Final = 100_000
"""The fastest size for Spark: batches a tenth of this size are a third slower."""

_TEXT_BYTES: Final = 16
"""Estimated size of a string."""

_MAX_PLANNED_LABEL_BYTES: Final = 1 << 18
"""Labels up to this size are part of the plan; tasks read larger ones."""

_MAX_SCANNED_CHUNKS: Final = 1 << 20
"""Zarr visits every chunk between the first and the last of a sparse selection."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column of the table; ``axes`` are the indices of its dimensions in the table.

    The column of a dimension without labels has positions, and no ``path`` and ``coding``.
    ``labels`` are the values at all selected positions, if they are part of the plan.
    """

    name: str
    path: str | None
    axes: tuple[int, ...]
    coding: Coding | None
    labels: pa.Array | None = None

    @property
    def type(self) -> pa.DataType:
        return pa.int64() if self.coding is None else self.coding.type

    @property
    def row_bytes(self) -> float:
        """Estimated size of a value."""
        try:
            return float(self.type.bit_width) / 8
        except ValueError:
            return _TEXT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class RowsPlan:
    """`ReadPlan` of a table of rows; a partition is a range of blocks."""

    axes: tuple[Axis, ...]
    columns: tuple[Column, ...]
    nan_as_null: bool
    target_bytes: int | None = None
    target_rows: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each dimension."""
        return tuple(axis.num_blocks for axis in self.axes)

    @property
    def num_rows(self) -> int:
        return prod(map(len, self.axes))

    @property
    def row_bytes(self) -> float:
        """Estimated size of a row."""
        return sum(column.row_bytes for column in self.columns)

    def split(self, positions: Sequence[Sequence[int]]) -> RowsPlan:
        """Return a plan whose blocks are also split at some positions along each dimension."""
        axes = list(self.axes)
        for number, split_positions in enumerate(positions):
            for position in split_positions:
                axes[number] = axes[number].split(position)
        return replace(self, axes=tuple(axes))

    def partitions(self, source: object = None) -> list[range]:  # noqa: ARG002 - required by ReadPlan
        """Split the blocks into ranges of about the same size."""
        num_blocks = prod(self.grid)
        if not num_blocks or not self.num_rows:
            return []
        total = self.num_rows * self.row_bytes
        target = choose_target_bytes(total, self.target_bytes)
        if self.target_rows is not None:
            rows_target = self.target_rows * self.row_bytes
            target = rows_target if self.target_bytes is None else min(target, rows_target)
        return split_evenly(num_blocks, total, target)

    def read(self, source: SnapshotSource, partition: range) -> Iterator[pa.RecordBatch]:
        return read_rows(source.open_session(), self, partition)


def plan_rows(session: Session, options: ReadOptions) -> RowsPlan:
    """Plan the table of a group.

    Reads only the labels of dimensions that are short or selected by label. Raises if a node does
    not exist, variables do not fit into one table, or a selection is empty.
    """
    group = Group.fetch(session, options.group)
    variables = _choose_variables(group, options.variables)
    dims = _find_dimensions(group, variables, by_name=options.variables is not None)
    labels = {name: group.variables[name] for name in dims if group.has_labels(name)}
    coordinates = _find_coordinates(group, variables, dims)
    sizes = group.get_sizes([*variables, *labels.values(), *coordinates])
    arrays = {
        variable.name: open_array(session.store, variable.path)
        for variable in (*variables, *labels.values())
    }
    require_selectable(options, dims)
    selected = select(session, group, dims, sizes, options)
    axes = tuple(
        Axis.from_edges(dim, selected[dim], _choose_edges(dim, variables, arrays)) for dim in dims
    )
    columns = [
        _make_dimension_column(axis, number, labels.get(axis.name), arrays, options.nan_as_null)
        for number, axis in enumerate(axes)
    ]
    for variable in (*coordinates, *variables):
        if variable.is_index:
            continue
        if variable.name in dims:
            raise input_error(
                f"variable {variable.name!r} has the name of a dimension, but other dimensions: "
                "omit it from 'variables'"
            )
        array = arrays.get(variable.name) or open_array(session.store, variable.path)
        variable_axes = tuple(dims.index(name) for name in variable.dims)
        coding = find_coding(group, variable, array.dtype)
        columns.append(Column(variable.name, variable.path, variable_axes, coding))
    return RowsPlan(
        axes, tuple(columns), options.nan_as_null, options.target_bytes, options.target_rows
    )


def find_coding(group: Group, variable: Variable, dtype: np.dtype[Any]) -> Coding:
    """Return the coding of a variable. Bounds inherit the units of times (CF conventions, 7.1)."""
    inherited: dict[str, Any] = {}
    for other in group.variables.values():
        units = other.attributes.get("units")
        if variable.name in other.list_names("bounds") and " since " in str(units):
            names = other.attributes.keys() & {"units", "calendar"}
            inherited = {name: other.attributes[name] for name in names}
    return Coding.from_attributes(variable.name, dtype, {**inherited, **variable.attributes})


def read_rows(session: Session, plan: RowsPlan, blocks: range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of blocks; adjacent blocks are read together."""
    if not plan.num_rows:
        return
    block_bytes = plan.num_rows * plan.row_bytes / max(prod(plan.grid), 1)
    blocks_per_read = max(1, int(MAX_BYTES_IN_MEMORY / max(block_bytes, 1)))
    arrays = {
        column.path: open_array(session.store, column.path)
        for column in plan.columns
        if column.path is not None and column.labels is None
    }
    for first in range(blocks.start, blocks.stop, blocks_per_read):
        for box in iter_boxes(first, min(first + blocks_per_read, blocks.stop), plan.grid):
            yield from _read_box(plan, arrays, box)


def _read_box(
    plan: RowsPlan, arrays: Mapping[str, zarr.Array[Any]], box: Box
) -> Iterator[pa.RecordBatch]:
    # Convert block numbers to indices of the selected positions.
    bounds = [
        (int(axis.offsets[first]), int(axis.offsets[stop]))
        for axis, (first, stop) in zip(plan.axes, box, strict=True)
    ]
    shape = tuple(stop - first for first, stop in bounds)
    values = [_read_column(plan, arrays, column, bounds) for column in plan.columns]
    schema = plan.schema
    all_axes = tuple(range(len(shape)))
    broadcasts: dict[Any, pa.Array] = {}
    for piece in iter_pieces(shape, _BATCH_ROWS):
        size = tuple(stop - first for first, stop in piece)
        batch = []
        for number, column in enumerate(plan.columns):
            if column.axes == all_axes:
                start = int(np.ravel_multi_index([first for first, _ in piece], shape))
                batch.append(values[number].slice(start, prod(size)))
                continue
            # A column with fewer dimensions has the same values in many pieces.
            key = (number, size, tuple(piece[axis] for axis in column.axes))
            if key not in broadcasts:
                if len(broadcasts) > 4 * len(plan.columns):
                    broadcasts.clear()
                indices = _broadcast_indices(column.axes, piece, shape)
                broadcasts[key] = values[number].take(pa.array(indices))
            batch.append(broadcasts[key])
        yield pa.RecordBatch.from_arrays(batch, schema=schema)


def _read_column(
    plan: RowsPlan,
    arrays: Mapping[str, zarr.Array[Any]],
    column: Column,
    bounds: Sequence[tuple[int, int]],
) -> pa.Array:
    """Return the values of a column in a box, over its own axes in the order of the table."""
    if column.coding is None or column.labels is not None:
        (number,) = column.axes
        first, stop = bounds[number]
        if column.labels is not None:
            return column.labels.slice(first, stop - first)
        return pa.array(np.asarray(plan.axes[number].positions[first:stop], np.int64))
    assert column.path is not None  # noqa: S101 - columns with a coding have a path
    stored = _read_array(
        arrays[column.path],
        tuple(plan.axes[number].make_indexer(*bounds[number]) for number in column.axes),
    )
    order = np.argsort(column.axes)
    return column.coding.decode(stored.transpose(order), nan_as_null=plan.nan_as_null)


def _broadcast_indices(
    axes: tuple[int, ...], piece: Box, shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return for each row of a piece the index of its value in a column with fewer dimensions."""
    size = tuple(stop - first for first, stop in piece)
    indices = np.zeros((1,) * len(shape), np.int64)
    stride = 1
    for axis in sorted(axes, reverse=True):
        axis_shape = [1] * len(shape)
        axis_shape[axis] = size[axis]
        indices = indices + (np.arange(*piece[axis]) * stride).reshape(axis_shape)
        stride *= shape[axis]
    return np.broadcast_to(indices, size).reshape(-1)


def _read_array(array: zarr.Array[Any], indexers: tuple[Indexer, ...]) -> NDArray[Any]:
    for axis, (indexer, edges) in enumerate(zip(indexers, get_chunk_edges(array), strict=True)):
        is_dense = isinstance(indexer, slice) and indexer.step in {None, 1}
        if isinstance(edges, RegularEdges) and len(edges) > _MAX_SCANNED_CHUNKS and not is_dense:
            return _read_sparse(array, indexers, axis, edges.chunk_length)
    if all(isinstance(indexer, slice) for indexer in indexers):
        return np.asarray(array[indexers])
    return np.asarray(array.oindex[indexers])


def _read_sparse(
    array: zarr.Array[Any], indexers: tuple[Indexer, ...], axis: int, chunk_length: int
) -> NDArray[Any]:
    """Read chunk by chunk along an axis, so that Zarr does not visit all chunks between."""
    indexer = indexers[axis]
    positions = np.r_[indexer] if isinstance(indexer, slice) else indexer
    parts = np.split(positions, np.flatnonzero(np.diff(positions // chunk_length)) + 1)
    blocks = []
    for part in parts:
        dense = slice(int(part[0]), int(part[-1]) + 1)
        values = _read_array(array, (*indexers[:axis], dense, *indexers[axis + 1 :]))
        blocks.append(values.take(part - part[0], axis=axis))
    return np.concatenate(blocks, axis=axis)


def _choose_variables(group: Group, names: tuple[str, ...] | None) -> list[Variable]:
    if names is not None:
        return [group.get_variable(name) for name in names]
    variables = group.variables.values()
    # Bounds, grid mappings and coordinates describe other variables.
    attributes = ("bounds", "climatology", "grid_mapping", "coordinates")
    helpers = group.coordinates.union(*(variable.list_names(*attributes) for variable in variables))
    data_variables = [
        variable for variable in variables if variable.name not in helpers and not variable.is_index
    ]
    if chosen := data_variables or [variable for variable in variables if variable.is_index]:
        return chosen
    raise input_error(
        f"group {group.path!r} has no arrays: set the option 'group', or list the arrays with "
        "table='nodes'"
    )


def _find_dimensions(group: Group, variables: list[Variable], *, by_name: bool) -> tuple[str, ...]:
    """Return the dimensions of the largest variable, which must include those of all others."""
    dims = max(variables, key=lambda variable: len(variable.dims)).dims
    if len(set(dims)) < len(dims):
        raise input_error(
            f"a variable has duplicate dimensions {dims}: read it with layout='chunks'"
        )
    if all(set(variable.dims) <= set(dims) for variable in variables):
        return dims
    tables: dict[tuple[str, ...], list[str]] = {}
    for variable in variables:
        tables.setdefault(variable.dims, []).append(variable.name)
    choices = [
        f"variables={','.join(names)!r} over ({', '.join(dims)})" for dims, names in tables.items()
    ]
    subject = "the requested variables" if by_name else f"the variables of group {group.path!r}"
    raise input_error(
        f"{subject} do not fit into one table, because their dimensions differ: choose "
        f"{', or '.join(choices)}"
    )


def _find_coordinates(
    group: Group, variables: list[Variable], dims: tuple[str, ...]
) -> list[Variable]:
    """Return the non-dimension coordinates, such as the latitude of each station."""
    names = group.coordinates.union(*(variable.list_names("coordinates") for variable in variables))
    names -= {variable.name for variable in variables} | set(dims)
    coordinates = (group.variables[name] for name in sorted(names & group.variables.keys()))
    return [variable for variable in coordinates if set(variable.dims) <= set(dims)]


def _choose_edges(
    name: str, variables: list[Variable], arrays: Mapping[str, zarr.Array[Any]]
) -> Edges:
    """Return the edges of the variable with the longest chunks along a dimension.

    If they are multiples of the chunks of other variables, one task reads each chunk. Variables
    with fewer dimensions are ignored, because they are small.
    """
    ndim = max(len(variable.dims) for variable in variables)
    edges = [
        get_chunk_edges(arrays[variable.name])[variable.dims.index(name)]
        for variable in variables
        if len(variable.dims) == ndim
    ]
    return min(edges, key=len)


def _make_dimension_column(
    axis: Axis,
    number: int,
    variable: Variable | None,
    arrays: Mapping[str, zarr.Array[Any]],
    nan_as_null: bool,  # noqa: FBT001
) -> Column:
    if variable is None:
        return Column(axis.name, None, (number,), None)
    array = arrays[variable.name]
    coding = Coding.from_attributes(variable.name, array.dtype, variable.attributes)
    labels = None
    if 0 < len(axis) * array.dtype.itemsize <= _MAX_PLANNED_LABEL_BYTES:
        stored = _read_array(array, (axis.make_indexer(0, len(axis)),))
        labels = coding.decode(stored, nan_as_null=nan_as_null)
    return Column(axis.name, variable.path, (number,), coding, labels)
