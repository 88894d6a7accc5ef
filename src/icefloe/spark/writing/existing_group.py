"""Rows into an existing group: appended to it, or in place of a region of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.spark.option_parsing import invalid_input, suggest_name
from icefloe.spark.reading.group import Group
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import Column, RowsPlan, find_coding, plan_rows
from icefloe.spark.reading.selections import require_dimensions, select
from icefloe.spark.writing.auxiliary_variables import AuxiliaryVariable
from icefloe.spark.writing.cf_encoding import as_type, encode, require_fill, require_writable
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
    from collections.abc import Callable, Mapping, Sequence

    import zarr

    from icefloe.session import Session
    from icefloe.spark.writing.write_options import WriteOptions

_LEAVE: Final = "add it, or name it in the option 'leave_missing'"


def plan_update(session: Session, options: WriteOptions, schema: pa.Schema) -> WritePlan:
    """Plan an append or a region; raise if the columns do not fit the group."""
    group = Group.fetch(session, options.group)
    table = _choose_table(session, group, schema)
    read_plan = plan_rows(session, ReadOptions(group=options.group, variables=table))
    dims = tuple(axis.name for axis in read_plan.axes)
    along = None if options.region is not None else _choose_append_dim(options, dims)
    columns = {
        column.name: column
        for column in read_plan.columns
        if column.name in dims or len(column.axes) == len(dims)
    }
    auxiliary = {} if along is None else _find_auxiliary(session, group, dims, along, columns)
    problems = [
        *_find_column_problems(options, schema, columns, dims, along),
        *_find_auxiliary_problems(options, schema, auxiliary, along),
    ]
    for name in sorted(set(schema.names) - columns.keys() - auxiliary.keys()):
        if name in group.variables:
            where = f"all of {', '.join(dims)}" if along is None else repr(along)
            problems.append(f"variable {name!r} does not go along {where}: drop the column")
        else:
            suggestion = suggest_name(name, [*columns, *auxiliary])
            problems.append(
                f"column {name!r} is no variable of the group ({suggestion}): drop or rename it"
            )
    growing = {*columns, *auxiliary} - {*dims}
    problems += _find_option_problems(options, along, growing, schema)
    if options.dims is not None and options.dims != dims:
        problems.append(
            f"its dimensions are {', '.join(dims)}, and the option 'dims' says others: leave it out"
        )
    require_no_problems(problems, options)
    _require_chunks(session, options, dims, columns)
    types = {name: column.type for name, column in columns.items() if name in schema.names}
    if along is None:
        require_dimensions("replace_where", options.region or {}, dims)
        return WritePlan("region", dims, types, (), table=table)
    require_dimensions("coords", options.coords, [along])
    given = tuple(name for name in auxiliary if name in schema.names)
    return WritePlan("append", dims, types, (along,), given, table)


def _choose_table(session: Session, group: Group, schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the variables that rows are written to; None is all, if they fit into one table.

    Otherwise those whose dimensions all have columns; the others are auxiliary.
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
    along = options.append_dim or (dims[0] if len(dims) == 1 else None)
    if along is None:
        raise invalid_input(
            f"group {options.group!r} exists: name with the option 'append_dim' along which of "
            f"{', '.join(dims)} rows are appended, or overwrite it"
        )
    require_dimensions("append_dim", {along: None}, dims)
    return along


def _find_auxiliary(
    session: Session, group: Group, dims: tuple[str, ...], along: str, columns: Mapping[str, Column]
) -> dict[str, AuxiliaryVariable]:
    """Return the variables that grow along a dimension and have no value per row."""
    found = {}
    for variable in group.variables.values():
        if along in variable.dims and variable.name not in columns:
            dtype = open_array(session.store, variable.path).dtype
            coding = find_coding(group, variable, dtype)
            found[variable.name] = AuxiliaryVariable.of(variable, coding, dims)
    return found


def _find_column_problems(
    options: WriteOptions,
    schema: pa.Schema,
    columns: Mapping[str, Column],
    dims: tuple[str, ...],
    along: str | None,
) -> list[str]:
    problems = []
    for name, column in columns.items():
        if name not in schema.names:
            is_dim = name in dims
            if name in options.leave_missing and column.coding is not None and not is_dim:
                problems += _try_check(require_fill, column.coding)
                continue
            what = "dimension" if is_dim else "variable"
            remedy = "add it" if along is None or is_dim else _LEAVE
            problems.append(f"there is no column for {what} {name!r} ({column.type}): {remedy}")
        elif column.coding is not None:
            problems += _try_check(require_writable, column.coding, schema.field(name).type)
        elif not pa.types.is_integer(schema.field(name).type):
            problems.append(f"column {name!r} has positions, and is {schema.field(name).type}")
    return problems


def _find_auxiliary_problems(
    options: WriteOptions,
    schema: pa.Schema,
    auxiliary: Mapping[str, AuxiliaryVariable],
    along: str | None,
) -> list[str]:
    problems = []
    for name, variable in auxiliary.items():
        if name in schema.names:
            problems += _try_check(variable.require_writable, schema.field(name).type)
        elif name in options.leave_missing:
            problems += _try_check(require_fill, variable.coding)
        else:
            over = ", ".join(variable.variable.dims)
            problems.append(
                f"variable {name!r} goes along {along!r} too, over ({over}), and has no column of "
                f"{variable.type}: {_LEAVE}"
            )
    return problems


def _find_option_problems(
    options: WriteOptions, along: str | None, growing: set[str], schema: pa.Schema
) -> list[str]:
    """Return problems of the option ``leave_missing``."""
    if options.leave_missing and along is None:
        return ["option 'leave_missing' is for appending: cells without a row become missing"]
    problems = []
    for name in options.leave_missing:
        if name not in growing:
            problems.append(
                f"option 'leave_missing' names {name!r}, which is no variable along {along!r}: "
                f"{suggest_name(name, growing)}"
            )
        elif name in schema.names:
            problems.append(
                f"variable {name!r} is in 'leave_missing' and has a column: drop one of them"
            )
    return problems


def _try_check(check: Callable[..., None], *given: Any) -> list[str]:
    """Return the error of a check as a problem."""
    try:
        check(*given)
    except InvalidInputError as error:
        return [str(error)]
    return []


def update_group(
    session: Session,
    options: WriteOptions,
    plan: WritePlan,
    labels: Mapping[str, pa.Array],
    distinct_rows: Callable[[Sequence[str]], pa.Table] | None,
) -> Grid:
    """Prepare a group: extend arrays for an append, and write what is not written row by row."""
    group = Group.fetch(session, options.group)
    read_plan = plan_rows(session, ReadOptions(group=options.group, variables=plan.table))
    columns = {column.name: column for column in read_plan.columns}
    sizes = {axis.name: len(axis) for axis in read_plan.axes}
    # Positions that rows may have, along each dimension.
    parts = {name: range(size) for name, size in sizes.items()}
    if plan.kind == "region":
        parts = _select_region(session, group, options, plan, sizes)
    after = {}
    for name, size in sizes.items():
        column = columns[name]
        before = pa.array(np.arange(size, dtype=np.int64))
        if column.coding is not None and column.path is not None:
            stored = np.asarray(open_array(session.store, column.path)[:])
            before = column.coding.decode(stored, nan_as_null=True)
        after[name] = before
        if name in labels:
            new = as_type(pc.unique(labels[name]), before.type)
            require_labels(name, new)
            after[name] = extend_labels(name, before, new)
            if column.coding is None and not after[name].equals(
                pa.array(np.arange(len(after[name]), dtype=np.int64))
            ):
                raise invalid_input(
                    f"dimension {name!r} has no labels: its new positions continue from {size}"
                )
            parts[name] = range(size, len(after[name]))
    grid = _make_grid(session, read_plan, plan, after, parts)
    if plan.kind == "append":
        _extend(session, group, plan, grid, distinct_rows)
    return grid


def _select_region(
    session: Session, group: Group, options: WriteOptions, plan: WritePlan, sizes: Mapping[str, int]
) -> dict[str, range]:
    read = ReadOptions(group=options.group, sel=options.region or {})
    try:
        selected = select(session, group, plan.dims, sizes, read)
    except InvalidInputError as error:
        raise invalid_input(f"option 'replace_where': {error}") from error
    parts = {}
    for name, found in selected.items():
        if not isinstance(found, range) or found.step != 1:
            raise invalid_input(
                f"the region along {name!r} has gaps: overwrite one range of labels at a time"
            )
        parts[name] = found
    return parts


def _make_grid(
    session: Session,
    read_plan: RowsPlan,
    plan: WritePlan,
    labels: Mapping[str, pa.Array],
    parts: Mapping[str, range],
) -> Grid:
    targets = tuple(
        Target(column.path, column.axes, column.coding)
        for column in read_plan.columns
        if column.path and column.coding and column.name not in plan.dims
        and len(column.axes) == len(plan.dims)
    )  # fmt: skip
    lengths = [_chunk_lengths(open_array(session.store, target.path)) for target in targets]
    dims = []
    for number, name in enumerate(plan.dims):
        along = [
            shape[target.axes.index(number)] for shape, target in zip(lengths, targets, strict=True)
        ]
        part = parts[name]
        block = choose_block_length(along, len(labels[name]))
        outside = _describe_outside(name, plan, labels[name], part)
        dims.append(Dimension(name, labels[name], part.start, part.stop, block, outside))
    return Grid(tuple(dims), targets)


def _extend(
    session: Session,
    group: Group,
    plan: WritePlan,
    grid: Grid,
    distinct_rows: Callable[[Sequence[str]], pa.Table] | None,
) -> None:
    """Extend arrays, and write labels and auxiliary variables."""
    (along,) = plan.unknown
    dims = {dim.name: dim for dim in grid.dims}
    new = dims[along]
    by_rows = {target.coding.name for target in grid.targets}
    for variable in group.variables.values():
        if along not in variable.dims:
            continue
        array = open_array(session.store, variable.path, mode="r+")
        axis = variable.dims.index(along)
        shape = list(array.shape)
        shape[axis] = new.stop
        array.resize(tuple(shape))
        if variable.name in by_rows:
            continue
        coding = find_coding(group, variable, array.dtype)
        part = (slice(None),) * axis + (slice(new.start, new.stop),)
        if variable.name == along:
            array[part] = encode(coding, new.labels[new.start :])
            continue
        auxiliary = AuxiliaryVariable.of(variable, coding, plan.dims)
        if auxiliary.name in plan.auxiliary:
            assert distinct_rows is not None  # noqa: S101 - given for plans with such columns
            rows = distinct_rows([*auxiliary.shared, auxiliary.name])
            array[part] = auxiliary.encode_rows(rows, dims)
        else:
            array[part] = auxiliary.make_missing(len(new), along)


def _require_chunks(
    session: Session, options: WriteOptions, dims: tuple[str, ...], columns: Mapping[str, Any]
) -> None:
    """Raise if the option ``chunks``, which streams keep, differs from the chunks of the group."""
    require_dimensions("chunks", options.chunks, dims)
    for column in columns.values():
        if column.name in dims or not options.chunks:
            continue
        lengths = _chunk_lengths(open_array(session.store, column.path))
        for name, requested in options.chunks.items():
            length = lengths[column.axes.index(dims.index(name))]
            if requested not in {-1, length}:
                raise invalid_input(
                    f"option 'chunks' says {requested} along {name!r}, and {column.name!r} has "
                    f"chunks of {length}: leave it out, or rechunk the group first"
                )


def _chunk_lengths(array: zarr.Array[Any]) -> tuple[int, ...]:
    lengths = getattr(array.metadata.chunk_grid, "chunk_shape", None)
    if lengths is None:
        raise invalid_input(
            f"{array.path!r} has chunks of different sizes, which rows cannot be written to: "
            "rechunk it, or write it with xarray"
        )
    return tuple(lengths)


def _describe_outside(name: str, plan: WritePlan, labels: pa.Array, part: range) -> str:
    if not len(part):
        return f"there is nothing to write along {name!r}"
    first, last = labels[part.start].as_py(), labels[part.stop - 1].as_py()
    if plan.kind == "region":
        return f"the region along {name!r} is {first!s} to {last!s}: filter the rows"
    return f"{name!r} has {len(part)} labels here, from {first!s} to {last!s}, and not this one"
