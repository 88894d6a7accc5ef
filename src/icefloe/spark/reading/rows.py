"""A group as rows: a column of labels per dimension, and a column per variable.

The plan is a value that knows nothing of Spark: a grid of blocks, and how columns are decoded. A
task reads boxes of blocks, decodes each variable once, and slices Arrow batches; nothing loops over
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.axes import Axis, Box, Edges, RegularEdges, boxes, pieces
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.spark.reading.group import Group, Variable, chunk_edges
from icefloe.spark.reading.partitions import MAX_BYTES_AT_ONCE, choose_target_bytes, split_evenly
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
"""The fastest size for Spark: batches of a tenth cost a third of its speed."""

_TEXT_BYTES: Final = 16
"""Estimated size of a string."""

_MAX_SHIPPED_BYTES: Final = 1 << 18
"""Labels of at most this size travel with the plan; tasks read larger ones."""

_MAX_SCANNED_CHUNKS: Final = 1 << 20
"""Zarr visits every chunk between the first and the last of a sparse selection."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column of the table; ``axes`` are numbers of dimensions of the table.

    Positions along a dimension without labels have no ``path`` and no ``coding``. ``labels`` are
    the values at all selected positions, if they travel with the plan.
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
        """Return the plan with blocks also split at some positions along each dimension."""
        axes = list(self.axes)
        for number, along in enumerate(positions):
            for position in along:
                axes[number] = axes[number].split(position)
        return replace(self, axes=tuple(axes))

    def partitions(self, source: object = None) -> list[range]:  # noqa: ARG002 - of ReadPlan
        """Split the blocks into ranges of about the same size; small chunks share one."""
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
        return read_rows(source.session(), self, partition)


def plan_rows(session: Session, options: ReadOptions) -> RowsPlan:
    """Plan the table of a group.

    Reads the labels of dimensions that are small or selected by label, and no other chunk. Raises
    if a node does not exist, variables do not fit into one table, or a selection matches nothing.
    """
    group = Group.fetch(session, options.group)
    chosen = _choose_variables(group, options.variables)
    dims = _find_dimensions(group, chosen, is_by_name=options.variables is not None)
    labels = {name: group.variables[name] for name in dims if group.has_labels(name)}
    others = _find_coordinates(group, chosen, dims)
    sizes = group.sizes([*chosen, *labels.values(), *others])
    arrays = {
        variable.name: open_array(session.store, variable.path)
        for variable in (*chosen, *labels.values())
    }
    require_selectable(options, dims)
    selected = select(session, group, dims, sizes, options)
    axes = tuple(
        Axis.from_edges(name, selected[name], _choose_edges(name, chosen, arrays)) for name in dims
    )
    columns = [
        _dimension_column(axis, number, labels.get(axis.name), arrays, options.nan_as_null)
        for number, axis in enumerate(axes)
    ]
    for variable in (*others, *chosen):
        if variable.is_index:
            continue
        if variable.name in dims:
            raise invalid_input(
                f"variable {variable.name!r} has the name of a dimension, and more dimensions: "
                "leave it out of 'variables'"
            )
        array = arrays.get(variable.name) or open_array(session.store, variable.path)
        over = tuple(dims.index(name) for name in variable.dims)
        coding = find_coding(group, variable, array.dtype)
        columns.append(Column(variable.name, variable.path, over, coding))
    return RowsPlan(
        axes, tuple(columns), options.nan_as_null, options.target_bytes, options.target_rows
    )


def find_coding(group: Group, variable: Variable, dtype: np.dtype[Any]) -> Coding:
    """Return how a variable is stored. Bounds inherit the units of times, as in CF."""
    inherited: dict[str, Any] = {}
    for other in group.variables.values():
        units = other.attributes.get("units")
        if variable.name in other.names_in("bounds") and " since " in str(units):
            names = other.attributes.keys() & {"units", "calendar"}
            inherited = {name: other.attributes[name] for name in names}
    return Coding.from_attributes(variable.name, dtype, {**inherited, **variable.attributes})


def read_rows(session: Session, plan: RowsPlan, blocks: range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some blocks; adjacent blocks are read together."""
    if not plan.num_rows:
        return
    block_bytes = plan.num_rows * plan.row_bytes / max(prod(plan.grid), 1)
    at_once = max(1, int(MAX_BYTES_AT_ONCE / max(block_bytes, 1)))
    arrays = {
        column.path: open_array(session.store, column.path)
        for column in plan.columns
        if column.path is not None and column.labels is None
    }
    for first in range(blocks.start, blocks.stop, at_once):
        for box in boxes(first, min(first + at_once, blocks.stop), plan.grid):
            yield from _read_box(plan, arrays, box)


def _read_box(
    plan: RowsPlan, arrays: Mapping[str, zarr.Array[Any]], box: Box
) -> Iterator[pa.RecordBatch]:
    # From numbers of blocks to indices into the selected positions.
    ends = [
        (int(axis.offsets[first]), int(axis.offsets[stop]))
        for axis, (first, stop) in zip(plan.axes, box, strict=True)
    ]
    shape = tuple(stop - first for first, stop in ends)
    values = [_read_column(plan, arrays, column, ends) for column in plan.columns]
    schema = plan.schema
    all_axes = tuple(range(len(shape)))
    repeated: dict[Any, pa.Array] = {}
    for piece in pieces(shape, _BATCH_ROWS):
        size = tuple(stop - first for first, stop in piece)
        batch = []
        for number, column in enumerate(plan.columns):
            if column.axes == all_axes:
                start = int(np.ravel_multi_index([first for first, _ in piece], shape))
                batch.append(values[number].slice(start, prod(size)))
                continue
            # A column that does not vary along some dimensions is the same for many pieces.
            key = (number, size, tuple(piece[axis] for axis in column.axes))
            if key not in repeated:
                if len(repeated) > 4 * len(plan.columns):
                    repeated.clear()
                indices = _broadcast_indices(column.axes, piece, shape)
                repeated[key] = values[number].take(pa.array(indices))
            batch.append(repeated[key])
        yield pa.RecordBatch.from_arrays(batch, schema=schema)


def _read_column(
    plan: RowsPlan,
    arrays: Mapping[str, zarr.Array[Any]],
    column: Column,
    ends: Sequence[tuple[int, int]],
) -> pa.Array:
    """Return the values of a column in a box, over the column's own axes, in the table's order."""
    if column.coding is None or column.labels is not None:
        (number,) = column.axes
        first, stop = ends[number]
        if column.labels is not None:
            return column.labels.slice(first, stop - first)
        return pa.array(np.asarray(plan.axes[number].positions[first:stop], np.int64))
    assert column.path is not None  # noqa: S101 - a coding belongs to an array
    stored = _read_array(
        arrays[column.path],
        tuple(plan.axes[number].indexer(*ends[number]) for number in column.axes),
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
        along = [1] * len(shape)
        along[axis] = size[axis]
        indices = indices + (np.arange(*piece[axis]) * stride).reshape(along)
        stride *= shape[axis]
    return np.broadcast_to(indices, size).reshape(-1)


def _read_array(array: zarr.Array[Any], indexers: tuple[Indexer, ...]) -> NDArray[Any]:
    for axis, (indexer, edges) in enumerate(zip(indexers, chunk_edges(array), strict=True)):
        is_dense = isinstance(indexer, slice) and indexer.step in {None, 1}
        if isinstance(edges, RegularEdges) and len(edges) > _MAX_SCANNED_CHUNKS and not is_dense:
            return _read_sparse(array, indexers, axis, edges.chunk_length)
    if all(isinstance(indexer, slice) for indexer in indexers):
        return np.asarray(array[indexers])
    return np.asarray(array.oindex[indexers])


def _read_sparse(
    array: zarr.Array[Any], indexers: tuple[Indexer, ...], axis: int, chunk_length: int
) -> NDArray[Any]:
    """Read chunk by chunk along an axis, which spares the scan of all chunks between."""
    indexer = indexers[axis]
    positions = np.r_[indexer] if isinstance(indexer, slice) else indexer
    parts = np.split(positions, np.flatnonzero(np.diff(positions // chunk_length)) + 1)
    found = []
    for part in parts:
        dense = slice(int(part[0]), int(part[-1]) + 1)
        values = _read_array(array, (*indexers[:axis], dense, *indexers[axis + 1 :]))
        found.append(values.take(part - part[0], axis=axis))
    return np.concatenate(found, axis=axis)


def _choose_variables(group: Group, names: tuple[str, ...] | None) -> list[Variable]:
    if names is not None:
        return [group.variable(name) for name in names]
    variables = group.variables.values()
    # Bounds, grid mappings and coordinates describe other variables.
    attributes = ("bounds", "climatology", "grid_mapping", "coordinates")
    helpers = group.coordinates.union(*(variable.names_in(*attributes) for variable in variables))
    chosen = [
        variable for variable in variables if variable.name not in helpers and not variable.is_index
    ]
    if chosen := chosen or [variable for variable in variables if variable.is_index]:
        return chosen
    raise invalid_input(
        f"group {group.path!r} has no arrays: name one that has with the option 'group', or list "
        "them with table='nodes'"
    )


def _find_dimensions(group: Group, chosen: list[Variable], *, is_by_name: bool) -> tuple[str, ...]:
    """Return the dimensions of the largest variable, which must include those of all others."""
    dims = max(chosen, key=lambda variable: len(variable.dims)).dims
    if len(set(dims)) < len(dims):
        raise invalid_input(
            f"a variable has a dimension twice: {dims}; read it with layout='chunks'"
        )
    if all(set(variable.dims) <= set(dims) for variable in chosen):
        return dims
    tables: dict[tuple[str, ...], list[str]] = {}
    for variable in chosen:
        tables.setdefault(variable.dims, []).append(variable.name)
    choices = [
        f"variables={','.join(names)!r} over ({', '.join(over)})" for over, names in tables.items()
    ]
    what = "the requested variables" if is_by_name else f"the variables of group {group.path!r}"
    raise invalid_input(
        f"{what} do not fit into one table, because their dimensions differ: choose "
        f"{', or '.join(choices)}"
    )


def _find_coordinates(
    group: Group, chosen: list[Variable], dims: tuple[str, ...]
) -> list[Variable]:
    """Return coordinates other than those of dimensions, such as the latitude of each station."""
    names = group.coordinates.union(*(variable.names_in("coordinates") for variable in chosen))
    names -= {variable.name for variable in chosen} | set(dims)
    variables = (group.variables[name] for name in sorted(names & group.variables.keys()))
    return [variable for variable in variables if set(variable.dims) <= set(dims)]


def _choose_edges(
    name: str, chosen: list[Variable], arrays: Mapping[str, zarr.Array[Any]]
) -> Edges:
    """Return the edges of the variable with the longest chunks along a dimension.

    If the chunks of other variables divide them, every chunk is read by one task only. Variables
    with fewer dimensions do not count: they are small.
    """
    ndim = max(len(variable.dims) for variable in chosen)
    edges = [
        chunk_edges(arrays[variable.name])[variable.dims.index(name)]
        for variable in chosen
        if len(variable.dims) == ndim
    ]
    return min(edges, key=len)


def _dimension_column(
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
    if 0 < len(axis) * array.dtype.itemsize <= _MAX_SHIPPED_BYTES:
        stored = _read_array(array, (axis.indexer(0, len(axis)),))
        labels = coding.decode(stored, nan_as_null=nan_as_null)
    return Column(axis.name, variable.path, (number,), coding, labels)
