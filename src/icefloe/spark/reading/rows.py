"""A group as rows: a column for each dimension, with its labels, and one for each variable.

The plan is a value that knows nothing of Spark: a grid of blocks, and how the columns are made of
it. A task reads boxes of blocks, decodes each variable once, and cuts Arrow batches from what it
has; nothing loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.spark.reading.axes import Axis, RegularEdges, boxes, pieces
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.spark.reading.group import Group, chunk_edges
from icefloe.spark.reading.partitions import MAX_BYTES_AT_ONCE, choose_target_bytes, split_evenly
from icefloe.spark.reading.read_options import invalid_input
from icefloe.spark.reading.selections import require_selectable, select
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import zarr
    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.spark.reading.axes import Box, Edges
    from icefloe.spark.reading.group import Variable
    from icefloe.spark.reading.read_options import ReadOptions

_BATCH_ROWS: Final = 100_000
"""What Spark takes fastest: ten times fewer rows cost a third of its speed."""

_TEXT_BYTES: Final = 16
"""What a string is taken to need, where partitions are planned."""

_SHIPPED_BYTES: Final = 1 << 18
"""Labels of a dimension that take no more travel with the plan; tasks fetch the others."""

_WALKED_CHUNKS: Final = 1 << 20
"""Zarr finds the chunks of a selection with holes by going through all along its dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column of the table.

    Parameters
    ----------
    name
        Its name.
    path
        The array that it comes from; None for the positions along a dimension without labels.
    axes
        The dimensions of the array, as numbers of dimensions of the table.
    coding
        How stored values become those of the column.
    labels
        The values for all selected positions, where the plan has them.
    """

    name: str
    path: str | None
    axes: tuple[int, ...]
    coding: Coding | None
    labels: pa.Array | None = None

    @property
    def type(self) -> pa.DataType:
        """The type of its values."""
        return pa.int64() if self.coding is None else self.coding.type

    @property
    def row_bytes(self) -> float:
        """How much a value takes, about."""
        try:
            return float(self.type.bit_width) / 8
        except ValueError:
            return _TEXT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class RowsPlan:
    """What rows a table has, and in which chunks they are found."""

    axes: tuple[Axis, ...]
    columns: tuple[Column, ...]
    nan_as_null: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def grid(self) -> tuple[int, ...]:
        """How many blocks there are along each dimension."""
        return tuple(axis.num_blocks for axis in self.axes)

    @property
    def num_rows(self) -> int:
        """How many rows the table has."""
        return prod(map(len, self.axes))

    @property
    def row_bytes(self) -> float:
        """How much a row takes, about."""
        return sum(column.row_bytes for column in self.columns)

    def split(self, ends: Sequence[Sequence[int]]) -> RowsPlan:
        """Cut blocks also at some positions along each dimension."""
        axes = list(self.axes)
        for number, along in enumerate(ends):
            for position in along:
                axes[number] = axes[number].split(position)
        return replace(self, axes=tuple(axes))

    def partitions(self, target_bytes: int | None, target_rows: int | None) -> list[range]:
        """Cut the blocks into ranges of about the same size; small chunks share one."""
        num_blocks = prod(self.grid)
        if not num_blocks or not self.num_rows:
            return []
        total = self.num_rows * self.row_bytes
        target = choose_target_bytes(total, target_bytes)
        if target_rows is not None:
            rows_target = target_rows * self.row_bytes
            target = rows_target if target_bytes is None else min(target, rows_target)
        return split_evenly(num_blocks, total, target)


def plan_rows(session: Session, options: ReadOptions) -> RowsPlan:
    """Plan the table of a group.

    Reads the labels of the dimensions that are small or selected by label, and nothing else.

    Raises
    ------
    NodeNotFoundError
        If the group or a variable does not exist.
    InvalidInputError
        If variables do not fit into one table, or a selection matches nothing.
    """
    group = Group.fetch(session, options.group)
    chosen = _choose(group, options.variables)
    dims = _dimensions(group, chosen, by_name=options.variables is not None)
    labels = {name: group.variables[name] for name in dims if group.has_labels(name)}
    others = _coordinates(group, chosen, dims)
    sizes = group.sizes([*chosen, *labels.values(), *others])
    arrays = {one.name: open_array(session.store, one.path) for one in (*chosen, *labels.values())}
    require_selectable(options, dims)
    selected = select(session, group, dims, sizes, options)
    axes = tuple(
        Axis.from_edges(name, selected[name], _edges(name, chosen, arrays)) for name in dims
    )
    columns = [
        _dimension(axis, number, labels.get(axis.name), arrays, nan_as_null=options.nan_as_null)
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
        columns.append(
            Column(
                variable.name,
                variable.path,
                tuple(dims.index(name) for name in variable.dims),
                find_coding(group, variable, array.dtype),
            )
        )
    return RowsPlan(axes, tuple(columns), options.nan_as_null)


def find_coding(group: Group, variable: Variable, dtype: np.dtype[Any]) -> Coding:
    """Read how a variable is stored; the bounds of times are times as these are, as CF has it."""
    inherited: dict[str, Any] = {}
    for other in group.variables.values():
        units = other.attributes.get("units")
        if variable.name in other.names_in("bounds") and " since " in str(units):
            inherited = {
                name: other.attributes[name]
                for name in ("units", "calendar")
                if name in other.attributes
            }
    return Coding.of(variable.name, dtype, {**inherited, **variable.attributes})


def read_rows(session: Session, plan: RowsPlan, blocks: range) -> Iterator[pa.RecordBatch]:
    """Read some blocks of a table as batches; a stretch of neighbours is one read each."""
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
    # From numbers of blocks to places among the selected positions.
    ends = [
        (int(axis.offsets[first]), int(axis.offsets[stop]))
        for axis, (first, stop) in zip(plan.axes, box, strict=True)
    ]
    shape = tuple(stop - first for first, stop in ends)
    values = [_read_column(plan, arrays, column, ends) for column in plan.columns]
    schema = plan.schema
    everything = tuple(range(len(shape)))
    kept: dict[Any, pa.Array] = {}
    for piece in pieces(shape, _BATCH_ROWS):
        size = tuple(stop - first for first, stop in piece)
        batch = []
        for number, column in enumerate(plan.columns):
            if column.axes == everything:
                start = int(np.ravel_multi_index([first for first, _ in piece], shape))
                batch.append(values[number].slice(start, prod(size)))
                continue
            # What does not vary along some dimensions is the same for many pieces.
            key = (number, size, tuple(piece[axis] for axis in column.axes))
            if key not in kept:
                if len(kept) > 4 * len(plan.columns):
                    kept.clear()
                kept[key] = values[number].take(pa.array(_places(column.axes, piece, shape)))
            batch.append(kept[key])
        yield pa.RecordBatch.from_arrays(batch, schema=schema)


def _read_column(
    plan: RowsPlan,
    arrays: Mapping[str, zarr.Array[Any]],
    column: Column,
    ends: Sequence[tuple[int, int]],
) -> pa.Array:
    """Read what a box has of one column: a value for each place along the column's own axes.

    They come in the order of the table's dimensions, whatever the order in the array.
    """
    if column.coding is None or column.labels is not None:
        (number,) = column.axes
        first, stop = ends[number]
        if column.labels is not None:
            return column.labels.slice(first, stop - first)
        return pa.array(np.asarray(plan.axes[number].positions[first:stop], np.int64))
    assert column.path is not None  # noqa: S101 - whatever is coded is stored
    wanted = tuple(plan.axes[number].indexer(*ends[number]) for number in column.axes)
    stored = _read(arrays[column.path], wanted)
    order = np.argsort(column.axes)
    return column.coding.decode(stored.transpose(order), nan_as_null=plan.nan_as_null)


def _places(axes: tuple[int, ...], piece: Box, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Say for each row of a piece which value of a column with fewer dimensions it has."""
    size = tuple(stop - first for first, stop in piece)
    found = np.zeros((1,) * len(shape), np.int64)
    stride = 1
    for axis in sorted(axes, reverse=True):
        along = [1] * len(shape)
        along[axis] = size[axis]
        found = found + (np.arange(*piece[axis]) * stride).reshape(along)
        stride *= shape[axis]
    return np.broadcast_to(found, size).reshape(-1)


def _read(array: zarr.Array[Any], wanted: tuple[slice | NDArray[np.int64], ...]) -> NDArray[Any]:
    for axis, (one, edges) in enumerate(zip(wanted, chunk_edges(array), strict=True)):
        is_dense = isinstance(one, slice) and one.step in {None, 1}
        if isinstance(edges, RegularEdges) and len(edges) > _WALKED_CHUNKS and not is_dense:
            return _read_scattered(array, wanted, axis, edges.chunk_length)
    if all(isinstance(one, slice) for one in wanted):
        return np.asarray(array[wanted])
    return np.asarray(array.oindex[wanted])


def _read_scattered(
    array: zarr.Array[Any],
    wanted: tuple[slice | NDArray[np.int64], ...],
    axis: int,
    chunk_length: int,
) -> NDArray[Any]:
    """Read chunk by chunk along an axis: zarr goes through all between the first and the last."""
    chosen = wanted[axis]
    positions = np.r_[chosen] if isinstance(chosen, slice) else chosen
    parts = np.split(positions, np.flatnonzero(np.diff(positions // chunk_length)) + 1)
    found = []
    for part in parts:
        dense = slice(int(part[0]), int(part[-1]) + 1)
        values = _read(array, (*wanted[:axis], dense, *wanted[axis + 1 :]))
        found.append(values.take(part - part[0], axis=axis))
    return np.concatenate(found, axis=axis)


def _choose(group: Group, names: tuple[str, ...] | None) -> list[Variable]:
    if names is not None:
        return [group.variable(name) for name in names]
    everything = group.variables.values()
    # Bounds and the like describe other variables, and have dimensions of their own.
    helpers = set[str]().union(
        *(
            one.names_in("bounds", "climatology", "grid_mapping", "coordinates")
            for one in everything
        )
    )
    text = group.attributes.get("coordinates")
    helpers |= set(text.split()) if isinstance(text, str) else set()
    chosen = [one for one in everything if one.name not in helpers and not one.is_index]
    if chosen := chosen or [one for one in everything if one.is_index]:
        return chosen
    raise invalid_input(
        f"group {group.path!r} has no arrays: name one that has with the option 'group', or look "
        "with table='nodes'"
    )


def _dimensions(group: Group, chosen: list[Variable], *, by_name: bool) -> tuple[str, ...]:
    """Take the dimensions of the largest variable; those of all others must be among them."""
    dims = max(chosen, key=lambda one: len(one.dims)).dims
    if len(set(dims)) < len(dims):
        raise invalid_input(
            f"a variable has a dimension twice: {dims}; read it with layout='chunks'"
        )
    if all(set(one.dims) <= set(dims) for one in chosen):
        return dims
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in chosen:
        groups.setdefault(one.dims, []).append(one.name)
    fitting = [
        f"variables={','.join(names)!r} over ({', '.join(over)})" for over, names in groups.items()
    ]
    asked = "the variables asked for" if by_name else f"the variables of group {group.path!r}"
    raise invalid_input(
        f"{asked} do not fit into one table, because their dimensions differ: choose "
        f"{', or '.join(fitting)}"
    )


def _coordinates(group: Group, chosen: list[Variable], dims: tuple[str, ...]) -> list[Variable]:
    """Find coordinates besides those of the dimensions, such as the latitude of each station."""
    names = set[str]().union(*(one.names_in("coordinates") for one in chosen))
    text = group.attributes.get("coordinates")
    names |= set(text.split()) if isinstance(text, str) else set()
    names -= {one.name for one in chosen} | set(dims)
    found = (group.variables[name] for name in sorted(names & group.variables.keys()))
    return [one for one in found if set(one.dims) <= set(dims)]


def _edges(name: str, chosen: list[Variable], arrays: Mapping[str, zarr.Array[Any]]) -> Edges:
    """Cut a dimension as the variable does that has the longest chunks there.

    Where chunks of others are whole parts of these, every chunk is read by one task alone. Only
    variables with all dimensions count: what is repeated along one is small beside them.
    """
    most = max(len(one.dims) for one in chosen)
    cuts = [
        chunk_edges(arrays[one.name])[one.dims.index(name)]
        for one in chosen
        if len(one.dims) == most
    ]
    return min(cuts, key=len)


def _dimension(
    axis: Axis,
    number: int,
    variable: Variable | None,
    arrays: Mapping[str, zarr.Array[Any]],
    *,
    nan_as_null: bool,
) -> Column:
    if variable is None:
        return Column(axis.name, None, (number,), None)
    array = arrays[variable.name]
    coding = Coding.of(variable.name, array.dtype, variable.attributes)
    labels = None
    if len(axis) * array.dtype.itemsize <= _SHIPPED_BYTES and len(axis):
        stored = _read(array, (axis.indexer(0, len(axis)),))
        labels = coding.decode(stored, nan_as_null=nan_as_null)
    return Column(axis.name, variable.path, (number,), coding, labels)
