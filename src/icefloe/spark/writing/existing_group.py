"""Rows into a group that is there: appended to it, or in place of a region of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.spark.option_parsing import invalid_input, suggest_name
from icefloe.spark.reading.group import Group
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import find_coding, plan_rows
from icefloe.spark.reading.selections import require_dimensions, select
from icefloe.spark.writing.auxiliary_variables import AuxiliaryVariable, require_fill
from icefloe.spark.writing.cf_encoding import as_type, encode, require_writable
from icefloe.spark.writing.write_grid import Dimension, Grid, Target, block_length, extend_labels
from icefloe.spark.writing.write_plan import WritePlan, require_fitting, require_labels
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zarr

    from icefloe.session import Session
    from icefloe.spark.writing.write_options import WriteOptions

_LEAVE: Final = "add it, or name it in the option 'leave_missing'"


def plan_update(session: Session, options: WriteOptions, schema: pa.Schema) -> WritePlan:
    """Check whether rows fit a group."""
    group = Group.fetch(session, options.group)
    table = _table(session, group, schema)
    plan = plan_rows(session, ReadOptions(group=options.group, variables=table))
    dims = tuple(axis.name for axis in plan.axes)
    along = None if options.region is not None else _append_dim(options, dims)
    wanted = {
        column.name: column
        for column in plan.columns
        if column.name in dims or len(column.axes) == len(dims)
    }
    beside = {} if along is None else _beside(session, group, dims, along, wanted)
    left = options.leave_missing
    problems = []
    for name, column in wanted.items():
        if name not in schema.names:
            if name in left and column.coding is not None and name not in dims:
                problems += _problems(require_fill, column.coding)
                continue
            what = "dimension" if name in dims else "variable"
            remedy = "add it" if along is None or name in dims else _LEAVE
            problems.append(f"there is no column for {what} {name!r} ({column.type}): {remedy}")
        elif column.coding is not None:
            problems += _problems(require_writable, column.coding, schema.field(name).type)
        elif not pa.types.is_integer(schema.field(name).type):
            problems.append(f"column {name!r} has positions, and is {schema.field(name).type}")
    for name, one in beside.items():
        if name in schema.names:
            problems += _problems(one.require_writable, schema.field(name).type)
        elif name in left:
            problems += _problems(require_fill, one.coding)
        else:
            problems.append(
                f"variable {name!r} goes along {along!r} too, over "
                f"({', '.join(one.variable.dims)}), and has no column of {one.type}: {_LEAVE}"
            )
    for name in sorted(set(schema.names) - wanted.keys() - beside.keys()):
        if name in group.variables:
            where = f"all of {', '.join(dims)}" if along is None else repr(along)
            problems.append(f"variable {name!r} does not go along {where}: drop the column")
        else:
            problems.append(
                f"column {name!r} is no variable of the group ("
                f"{suggest_name(name, [*wanted, *beside])}): drop or rename it"
            )
    problems += _problems_of_left(options, along, {*wanted, *beside} - {*dims}, schema)
    if options.dims is not None and options.dims != dims:
        problems.append(
            f"its dimensions are {', '.join(dims)}, and the option 'dims' says others: leave it out"
        )
    require_fitting(problems, options)
    _require_chunks(session, options, dims, wanted)
    columns = {name: wanted[name].type for name in wanted if name in schema.names}
    if along is None:
        require_dimensions("replace_where", options.region or {}, dims)
        return WritePlan("region", dims, columns, (), table=table)
    require_dimensions("coords", options.coords, [along])
    told = tuple(name for name in beside if name in schema.names)
    return WritePlan("append", dims, columns, (along,), told, table)


def _table(session: Session, group: Group, schema: pa.Schema) -> tuple[str, ...] | None:
    """Say which variables are the table that rows are of; all of them, where they fit into one.

    Otherwise those along dimensions that have columns, and the others are beside the table.
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


def _append_dim(options: WriteOptions, dims: tuple[str, ...]) -> str:
    along = options.append_dim or (dims[0] if len(dims) == 1 else None)
    if along is None:
        raise invalid_input(
            f"group {options.group!r} is there: say with the option 'append_dim' along which of "
            f"{', '.join(dims)} rows are appended, or overwrite it"
        )
    require_dimensions("append_dim", {along: None}, dims)
    return along


def _beside(
    session: Session, group: Group, dims: tuple[str, ...], along: str, wanted: Mapping[str, Any]
) -> dict[str, AuxiliaryVariable]:
    """Find the variables that grow with a dimension, and have no value for each row."""
    return {
        variable.name: AuxiliaryVariable.of(
            variable,
            find_coding(group, variable, open_array(session.store, variable.path).dtype),
            dims,
        )
        for variable in group.variables.values()
        if along in variable.dims and variable.name not in wanted
    }


def _problems(check: Callable[..., None], *given: Any) -> list[str]:
    try:
        check(*given)
    except InvalidInputError as error:
        return [str(error)]
    return []


def _problems_of_left(
    options: WriteOptions, along: str | None, growing: set[str], schema: pa.Schema
) -> list[str]:
    """Say what is wrong with the option ``leave_missing``."""
    if options.leave_missing and along is None:
        return ["option 'leave_missing' is for appending: cells that no row tells of are missing"]
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


def update_group(
    session: Session,
    options: WriteOptions,
    intent: WritePlan,
    labels: Mapping[str, pa.Array],
    distinct_rows: Callable[[Sequence[str]], pa.Table] | None,
) -> Grid:
    """Make arrays longer where rows are appended, and write what does not go row by row."""
    read = ReadOptions(group=options.group, sel=options.region or {})
    group = Group.fetch(session, options.group)
    plan = plan_rows(session, ReadOptions(group=options.group, variables=intent.table))
    columns = {column.name: column for column in plan.columns}
    sizes = {axis.name: len(axis) for axis in plan.axes}
    # The part that rows may be in, along each dimension.
    parts = {name: range(size) for name, size in sizes.items()}
    if intent.kind == "region":
        try:
            selected = select(session, group, intent.dims, sizes, read)
        except InvalidInputError as error:
            raise invalid_input(f"option 'replace_where': {error}") from error
        for name, found in selected.items():
            if not isinstance(found, range) or found.step != 1:
                raise invalid_input(
                    f"the region along {name!r} has gaps: overwrite one stretch of labels at a time"
                )
            parts[name] = found
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
                    f"dimension {name!r} has no labels: its new positions go on from {size}"
                )
            parts[name] = range(size, len(after[name]))
    targets = tuple(
        Target(column.path, column.axes, column.coding)
        for column in plan.columns
        if column.path and column.coding and column.name not in intent.dims
        and len(column.axes) == len(intent.dims)
    )  # fmt: skip
    arrays = [open_array(session.store, target.path) for target in targets]
    dims = []
    for number, name in enumerate(intent.dims):
        lengths = [
            _regular(array)[target.axes.index(number)]
            for array, target in zip(arrays, targets, strict=True)
        ]
        part = parts[name]
        dims.append(
            Dimension(
                name,
                after[name],
                part.start,
                part.stop,
                block_length(lengths, len(after[name])),
                _outside(name, intent, after[name], part),
            )
        )
    grid = Grid(tuple(dims), targets)
    if intent.kind == "append":
        _extend(session, group, intent, grid, distinct_rows)
    return grid


def _extend(
    session: Session,
    group: Group,
    intent: WritePlan,
    grid: Grid,
    distinct_rows: Callable[[Sequence[str]], pa.Table] | None,
) -> None:
    """Make arrays longer, and write what of them is not written row by row."""
    (along,) = intent.unknown
    dims = {one.name: one for one in grid.dims}
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
        one = AuxiliaryVariable.of(variable, coding, intent.dims)
        if one.name in intent.beside:
            assert distinct_rows is not None  # noqa: S101 - whoever has such columns tells of them
            array[part] = one.values(distinct_rows([*one.shared, one.name]), dims)
        else:
            array[part] = one.nothing(len(new), along)


def _require_chunks(
    session: Session, options: WriteOptions, dims: tuple[str, ...], wanted: Mapping[str, Any]
) -> None:
    """Refuse chunks that are not those of the group: a stream says the same before and after."""
    require_dimensions("chunks", options.chunks, dims)
    for column in wanted.values():
        if column.name in dims or not options.chunks:
            continue
        lengths = _regular(open_array(session.store, column.path))
        for name, asked in options.chunks.items():
            length = lengths[column.axes.index(dims.index(name))]
            if asked not in {-1, length}:
                raise invalid_input(
                    f"option 'chunks' says {asked} along {name!r}, and {column.name!r} has chunks "
                    f"of {length}: leave it out, or rechunk the group first"
                )


def _regular(array: zarr.Array[Any]) -> tuple[int, ...]:
    lengths = getattr(array.metadata.chunk_grid, "chunk_shape", None)
    if lengths is None:
        raise invalid_input(
            f"{array.path!r} has chunks of different sizes, which rows are not written to: rechunk "
            "it, or write it with xarray"
        )
    return tuple(lengths)


def _outside(name: str, intent: WritePlan, labels: pa.Array, part: range) -> str:
    if not len(part):
        return f"there is nothing to write along {name!r}"
    first, last = labels[part.start].as_py(), labels[part.stop - 1].as_py()
    if intent.kind == "region":
        return f"the region along {name!r} is {first!s} to {last!s}: filter the rows"
    return f"{name!r} has {len(part)} labels here, from {first!s} to {last!s}, and not this one"
