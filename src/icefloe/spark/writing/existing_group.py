"""Writing rows to an existing group: appends, and overwrites of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.spark.option_parsing import input_error, suggest_name
from icefloe.spark.reading.group import Group
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import Column, RowsPlan, find_coding, plan_rows
from icefloe.spark.reading.selections import require_dimensions, select
from icefloe.spark.writing.auxiliary_variables import AuxiliaryVariable
from icefloe.spark.writing.cf_encoding import cast_column, encode, require_fill, require_writable
from icefloe.spark.writing.write_grid import (
    Dimension,
    Grid,
    Target,
    choose_block_length,
    extend_labels,
)
from icefloe.spark.writing.write_plan import WritePlan, require_labels, require_no_problems
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    import zarr

    from icefloe.session import Session
    from icefloe.spark.writing.write_options import WriteOptions

_ADD_OR_LEAVE_MISSING: Final = "add it, or add the variable to the option 'leave_missing'"


def plan_update(session: Session, options: WriteOptions, schema: pa.Schema) -> WritePlan:
    """Plan an append or the overwrite of a region; raise if the columns do not match the group."""
    group = Group.fetch(session, options.group)
    table_variables = _choose_table_variables(session, group, schema)
    read_plan = plan_rows(session, ReadOptions(group=options.group, variables=table_variables))
    dims = tuple(axis.name for axis in read_plan.axes)
    append_dim = None if options.region is not None else _choose_append_dim(options, dims)
    columns = {
        column.name: column
        for column in read_plan.columns
        if column.name in dims or len(column.axes) == len(dims)
    }
    auxiliary = _find_auxiliary(session, group, dims, append_dim, columns) if append_dim else {}
    problems = [
        *_find_column_problems(options, schema, columns, dims, append_dim),
        *_find_auxiliary_problems(options, schema, auxiliary),
    ]
    for name in sorted(set(schema.names) - columns.keys() - auxiliary.keys()):
        if name in group.variables:
            expected = f"dimension {append_dim}" if append_dim else f"dimensions {', '.join(dims)}"
            problems.append(f"variable {name!r} does not have the {expected}: drop the column")
        else:
            suggestion = suggest_name(name, [*columns, *auxiliary])
            problems.append(
                f"column {name!r} is not a variable of the group ({suggestion}): drop or rename it"
            )
    data_variables = {*columns, *auxiliary} - {*dims}
    problems += _find_leave_missing_problems(options, append_dim, data_variables, schema)
    if options.dims is not None and options.dims != dims:
        problems.append(
            f"the dimensions of the group are {', '.join(dims)}, not those of the option 'dims': "
            "omit the option"
        )
    require_no_problems(problems, options)
    _require_same_chunks(session, options, dims, columns)
    types = {name: column.type for name, column in columns.items() if name in schema.names}
    if append_dim is None:
        require_dimensions("replace_where", options.region or {}, dims)
        return WritePlan("region", dims, types, (), table_variables=table_variables)
    require_dimensions("coords", options.coords, [append_dim])
    auxiliary_names = tuple(name for name in auxiliary if name in schema.names)
    return WritePlan("append", dims, types, (append_dim,), auxiliary_names, table_variables)


def _choose_table_variables(
    session: Session, group: Group, schema: pa.Schema
) -> tuple[str, ...] | None:
    """Return the names of the variables that rows are written to.

    None (all) if all variables fit into one table.
    Otherwise, the variables whose dimensions all have columns; the others are auxiliary.
    """
    try:
        plan_rows(session, ReadOptions(group=group.path))
    except InvalidInputError:
        names = tuple(
            variable.name
            for variable in group.variables.values()
            if not variable.is_index and set(variable.dims) <= set(schema.names)
        )
        if not names:
            raise
        return names
    return None


def _choose_append_dim(options: WriteOptions, dims: tuple[str, ...]) -> str:
    append_dim = options.append_dim or (dims[0] if len(dims) == 1 else None)
    if append_dim is None:
        raise input_error(
            f"group {options.group!r} already exists: set the option 'append_dim' to one of "
            f"{', '.join(dims)}, or overwrite the group"
        )
    require_dimensions("append_dim", {append_dim: None}, dims)
    return append_dim


def _find_auxiliary(
    session: Session, group: Group, dims: tuple[str, ...], append_dim: str, names: Container[str]
) -> dict[str, AuxiliaryVariable]:
    """Return the variables that have ``append_dim`` and are not in the table (``names``)."""
    auxiliary = {}
    for variable in group.variables.values():
        if append_dim in variable.dims and variable.name not in names:
            dtype = open_array(session.store, variable.path).dtype
            coding = find_coding(group, variable, dtype)
            auxiliary[variable.name] = AuxiliaryVariable.make(variable, coding, dims)
    return auxiliary


def _find_column_problems(
    options: WriteOptions,
    schema: pa.Schema,
    columns: Mapping[str, Column],
    dims: tuple[str, ...],
    append_dim: str | None,
) -> list[str]:
    problems = []
    for name, column in columns.items():
        if name not in schema.names:
            is_dim = name in dims
            if name in options.leave_missing and column.coding is not None and not is_dim:
                problems += _try_check(require_fill, column.coding)
                continue
            kind = "dimension" if is_dim else "variable"
            remedy = "add it" if append_dim is None or is_dim else _ADD_OR_LEAVE_MISSING
            problems.append(f"there is no column for {kind} {name!r} ({column.type}): {remedy}")
        elif column.coding is not None:
            problems += _try_check(require_writable, column.coding, schema.field(name).type)
        elif not pa.types.is_integer(schema.field(name).type):
            problems.append(f"column {name!r}: expected integers, got {schema.field(name).type}")
    return problems


def _find_auxiliary_problems(
    options: WriteOptions,
    schema: pa.Schema,
    auxiliary: Mapping[str, AuxiliaryVariable],
) -> list[str]:
    problems = []
    for name, variable in auxiliary.items():
        if name in schema.names:
            problems += _try_check(variable.require_writable, schema.field(name).type)
        elif name in options.leave_missing:
            problems += _try_check(require_fill, variable.coding)
        else:
            dims = ", ".join(variable.variable.dims)
            problems.append(
                f"there is no column of {variable.type} for variable {name!r} with dimensions "
                f"({dims}): {_ADD_OR_LEAVE_MISSING}"
            )
    return problems


def _find_leave_missing_problems(
    options: WriteOptions, append_dim: str | None, data_variables: set[str], schema: pa.Schema
) -> list[str]:
    if options.leave_missing and append_dim is None:
        problem = (
            "option 'leave_missing' is only for appends: in a region, every variable needs a "
            "column, and cells without a row become missing anyway"
        )
        return [problem]
    problems = []
    for name in options.leave_missing:
        if name not in data_variables:
            problems.append(
                f"option 'leave_missing': there is no variable {name!r} along {append_dim!r}: "
                f"{suggest_name(name, data_variables)}"
            )
        elif name in schema.names:
            problems.append(
                f"variable {name!r} is in 'leave_missing' and has a column: drop the column, or "
                "remove the variable from the option"
            )
    return problems


def _try_check(check: Callable[..., None], *arguments: Any) -> list[str]:
    """Run a check; return its error message as the only problem, or none."""
    try:
        check(*arguments)
    except InvalidInputError as error:
        return [str(error)]
    return []


def prepare_group(
    session: Session,
    options: WriteOptions,
    plan: WritePlan,
    labels: Mapping[str, pa.Array],
    fetch_distinct_rows: Callable[[Sequence[str]], pa.Table] | None,
) -> Grid:
    """Return the grid of the write.

    For an append, first extend the arrays and write labels and auxiliary variables.
    ``fetch_distinct_rows`` is as in `prepare_write`.
    """
    group = Group.fetch(session, options.group)
    read_plan = plan_rows(session, ReadOptions(group=options.group, variables=plan.table_variables))
    columns = {column.name: column for column in read_plan.columns}
    sizes = {axis.name: len(axis) for axis in read_plan.axes}
    # Positions that are written along each dimension.
    ranges = {name: range(size) for name, size in sizes.items()}
    if plan.kind == "region":
        ranges = _select_region(session, group, options, plan, sizes)
    all_labels = {}
    for name, size in sizes.items():
        column = columns[name]
        existing = pa.array(np.arange(size, dtype=np.int64))
        if column.coding is not None and column.path is not None:
            stored = np.asarray(open_array(session.store, column.path)[:])
            existing = column.coding.decode(stored, nan_as_null=True)
        all_labels[name] = existing
        if name in labels:
            new = cast_column(pc.unique(labels[name]), existing.type)
            require_labels(name, new)
            all_labels[name] = extend_labels(name, existing, new)
            if column.coding is None and not all_labels[name].equals(
                pa.array(np.arange(len(all_labels[name]), dtype=np.int64))
            ):
                raise input_error(
                    f"dimension {name!r} has no labels: new positions must continue from {size}"
                )
            ranges[name] = range(size, len(all_labels[name]))
    grid = _make_grid(session, read_plan, plan, all_labels, ranges)
    if plan.kind == "append":
        _extend_arrays(session, group, plan, grid, fetch_distinct_rows)
    return grid


def _select_region(
    session: Session, group: Group, options: WriteOptions, plan: WritePlan, sizes: Mapping[str, int]
) -> dict[str, range]:
    read = ReadOptions(group=options.group, sel=options.region or {})
    try:
        selected = select(session, group, plan.dims, sizes, read)
    except InvalidInputError as error:
        raise input_error(f"option 'replace_where': {error}") from error
    ranges = {}
    for name, positions in selected.items():
        if not isinstance(positions, range) or positions.step != 1:
            raise input_error(
                f"the region along {name!r} has gaps: overwrite one range of labels at a time"
            )
        ranges[name] = positions
    return ranges


def _make_grid(
    session: Session,
    read_plan: RowsPlan,
    plan: WritePlan,
    labels: Mapping[str, pa.Array],
    ranges: Mapping[str, range],
) -> Grid:
    targets = tuple(
        Target(column.path, column.axes, column.coding)
        for column in read_plan.columns
        if column.path and column.coding and column.name not in plan.dims
        and len(column.axes) == len(plan.dims)
    )  # fmt: skip
    chunk_shapes = [
        _get_chunk_lengths(open_array(session.store, target.path)) for target in targets
    ]
    dims = []
    for dim_index, name in enumerate(plan.dims):
        chunk_lengths = [
            shape[target.axes.index(dim_index)]
            for shape, target in zip(chunk_shapes, targets, strict=True)
        ]
        written = ranges[name]
        block_length = choose_block_length(chunk_lengths, len(labels[name]))
        advice = _describe_range(name, plan, labels[name], written)
        dims.append(
            Dimension(name, labels[name], written.start, written.stop, block_length, advice)
        )
    return Grid(tuple(dims), targets)


def _extend_arrays(
    session: Session,
    group: Group,
    plan: WritePlan,
    grid: Grid,
    fetch_distinct_rows: Callable[[Sequence[str]], pa.Table] | None,
) -> None:
    """Extend arrays, and write their labels and auxiliary variables."""
    (append_dim,) = plan.growing_dims
    dims = {dim.name: dim for dim in grid.dims}
    appended = dims[append_dim]
    target_names = {target.coding.name for target in grid.targets}
    for variable in group.variables.values():
        if append_dim not in variable.dims:
            continue
        array = open_array(session.store, variable.path, mode="r+")
        axis = variable.dims.index(append_dim)
        shape = list(array.shape)
        shape[axis] = appended.stop
        array.resize(tuple(shape))
        if variable.name in target_names:
            continue
        coding = find_coding(group, variable, array.dtype)
        part = (slice(None),) * axis + (slice(appended.start, appended.stop),)
        if variable.name == append_dim:
            array[part] = encode(coding, appended.labels[appended.start :])
            continue
        auxiliary = AuxiliaryVariable.make(variable, coding, plan.dims)
        if auxiliary.name in plan.auxiliary:
            assert fetch_distinct_rows is not None  # noqa: S101 - set for plans with such columns
            rows = fetch_distinct_rows([*auxiliary.shared, auxiliary.name])
            array[part] = auxiliary.encode_rows(rows, dims)
        else:
            array[part] = auxiliary.make_missing(len(appended), append_dim)


def _require_same_chunks(
    session: Session, options: WriteOptions, dims: tuple[str, ...], columns: Mapping[str, Any]
) -> None:
    """Raise if the option ``chunks`` differs from the group."""
    require_dimensions("chunks", options.chunks, dims)
    for column in columns.values():
        if column.name in dims or not options.chunks:
            continue
        lengths = _get_chunk_lengths(open_array(session.store, column.path))
        for name, requested in options.chunks.items():
            length = lengths[column.axes.index(dims.index(name))]
            if requested not in {-1, length}:
                raise input_error(
                    f"option 'chunks' is {requested} along {name!r}, but {column.name!r} has "
                    f"chunks of {length}: omit the option, or rechunk the group first"
                )


def _get_chunk_lengths(array: zarr.Array[Any]) -> tuple[int, ...]:
    lengths = getattr(array.metadata.chunk_grid, "chunk_shape", None)
    if lengths is None:
        raise input_error(
            f"{array.path!r} has chunks of different sizes, to which rows cannot be written: "
            "rechunk it, or write it with xarray"
        )
    return tuple(lengths)


def _describe_range(name: str, plan: WritePlan, labels: pa.Array, written: range) -> str:
    if not len(written):
        return f"there is nothing to write along {name!r}"
    first, last = labels[written.start].as_py(), labels[written.stop - 1].as_py()
    if plan.kind == "region":
        return f"the region along {name!r} is {first!s} to {last!s}: filter the rows"
    return f"expected one of the {len(written)} labels of {name!r} from {first!s} to {last!s}"
