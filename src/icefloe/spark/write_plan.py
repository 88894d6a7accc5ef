"""A write, planned: what kind it is, whether the columns fit, and which nodes it makes.

Checked against the snapshot that the write starts from, before anything is written. `prepare` then
makes nodes and labels in a session, and tells where rows go (`icefloe.spark.grid_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe.errors import InvalidInputError
from icefloe.model.path import Path
from icefloe.spark.axes import require_dimensions
from icefloe.spark.cf import Coding
from icefloe.spark.cf_encoding import as_type, encode, require_writable
from icefloe.spark.grid_rows import Dimension, Grid, Target, block_length, continued
from icefloe.spark.group import Group, open_array
from icefloe.spark.options import ReadOptions, invalid, nearest
from icefloe.spark.rows import plan_rows
from icefloe.spark.selections import select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.session import Session
    from icefloe.spark.write_options import WriteOptions

_TARGET_CHUNK_BYTES: Final = 4 << 20
_LABEL_CHUNK: Final = 1024
"""Labels come in chunks of at least so many, so that small appends do not leave tiny ones."""

_SECOND: Final = 1_000_000
_MICROSECONDS: Final = pa.timestamp("us")


@dataclass(frozen=True, slots=True, eq=False)
class Intent:
    """What a write does.

    Parameters
    ----------
    kind
        It makes a group, appends to one, or overwrites a region of one.
    dims
        The dimensions of the table.
    columns
        All columns, with the types in which they are written.
    unknown
        Dimensions whose new labels the rows tell.
    """

    kind: Literal["create", "append", "region"]
    dims: tuple[str, ...]
    columns: Mapping[str, pa.DataType]
    unknown: tuple[str, ...]

    @property
    def variables(self) -> list[str]:
        """The columns that are not dimensions."""
        return [name for name in self.columns if name not in self.dims]


def plan_write(
    session: Session, options: WriteOptions, schema: pa.Schema, *, overwrite: bool
) -> Intent:
    """Decide what a write does, and whether it can; nothing is written.

    Raises
    ------
    InvalidInputError
        If options do not fit, or the columns are not those of the group: all of what is wrong
        with them at once.
    """
    if len(set(schema.names)) < len(schema.names):
        raise invalid(f"columns come twice: {schema.names}")
    if options.region is not None and not overwrite:
        raise invalid("a region (option 'replace_where') is overwritten: use mode 'overwrite'")
    if options.region is not None and options.append_dim is not None:
        raise invalid("options 'replace_where' and 'append_dim' exclude each other: keep one")
    if not _has_arrays(session, options.group):
        if options.region is not None:
            raise invalid(
                f"option 'replace_where' needs a group that is there, and {options.group!r} has no "
                f"arrays in {session.connection.storage.url}: create it with the option 'dims'"
            )
        return _plan_creation(options, schema, options.dims)
    if overwrite and options.region is None:
        dims = options.dims
        if dims is None:
            plan = plan_rows(session, ReadOptions(group=options.group))
            dims = tuple(axis.name for axis in plan.axes)
        return _plan_creation(options, schema, dims)
    return _plan_change(session, options, schema)


def prepare(
    session: Session,
    options: WriteOptions,
    intent: Intent,
    labels: Mapping[str, pa.Array],
    *,
    has_gaps: bool = True,
) -> Grid:
    """Make the nodes and labels of a write in a session, and tell where rows go.

    Parameters
    ----------
    labels
        The labels of the dimensions that the intent does not know, in any order.
    has_gaps
        Whether cells may be missing; if not, new integers need no fill value, and xarray keeps
        them integers.
    """
    if intent.kind == "create":
        return _create(session, options, intent, labels, has_gaps=has_gaps)
    return _change(session, options, intent, labels)


def labels_of(intent: Intent, coords: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Read labels that options tell."""
    found = {}
    for name in intent.unknown:
        values = coords[name] if isinstance(coords[name], list) else [coords[name]]
        wanted = intent.columns[name]
        try:
            if pa.types.is_timestamp(wanted):
                found[name] = pa.array(np.array(values, "M8[us]"), wanted)
            else:
                found[name] = pa.array(values, wanted)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise invalid(f"option 'coords': {name!r} is a list of {wanted}: {error}") from error
    return found


# -- new groups


def _plan_creation(
    options: WriteOptions, schema: pa.Schema, dims: tuple[str, ...] | None
) -> Intent:
    if not dims:
        raise invalid(
            f"group {options.group!r} is not there: say with the option 'dims' which columns are "
            f"its dimensions, in order; the columns are {', '.join(schema.names)}"
        )
    problems = [
        f"there is no column for dimension {name!r} ({nearest(name, schema.names)})"
        for name in dims
        if name not in schema.names
    ]
    columns = {}
    for field in schema:
        kind = _written_as(field.type)
        if kind is None or (field.name in dims and pa.types.is_boolean(kind)):
            problems.append(
                f"column {field.name!r} is {field.type}, which no array holds: cast or drop it"
            )
        else:
            columns[field.name] = kind
    if set(schema.names) <= set(dims):
        problems.append("no column is left for a variable")
    _require_none(problems, options)
    require_dimensions("chunks", options.chunks, dims)
    require_dimensions("coords", options.coords, dims)
    return Intent("create", tuple(dims), columns, tuple(dims))


def _create(
    session: Session,
    options: WriteOptions,
    intent: Intent,
    labels: Mapping[str, pa.Array],
    *,
    has_gaps: bool,
) -> Grid:
    place = Path(options.group)
    transaction = session.transaction
    for name in sorted(transaction.children(place)):
        node = transaction.get_node(place.child(name))
        if node is not None and node.is_array:
            transaction.delete_node(node.path)
    group = zarr.open_group(session.store, path=options.group.strip("/"), mode="a", zarr_format=3)
    ordered = {
        name: pc.unique(as_type(labels[name], intent.columns[name])).sort() for name in intent.dims
    }
    for name, one in ordered.items():
        if not len(one):
            raise invalid(f"there are no rows, and so no labels for the new dimension {name!r}")
        _require_labels(name, one)
        coding, _ = _declared(name, one.type, one, has_gaps=False)
        array = group.create_array(
            name,
            shape=(len(one),),
            chunks=(max(len(one), _LABEL_CHUNK),),
            dtype=_zarr_dtype(coding),
            dimension_names=[name],
            attributes=dict(coding.attributes),
        )
        array[:] = encode(coding, one)
    shape = tuple(len(ordered[name]) for name in intent.dims)
    chunks = _chunks(shape, intent.dims, options.chunks)
    targets = []
    for name in intent.variables:
        coding, fill = _declared(name, intent.columns[name], None, has_gaps=has_gaps)
        made = group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype=_zarr_dtype(coding),
            fill_value=fill,
            dimension_names=list(intent.dims),
            attributes=dict(coding.attributes),
        )
        # As it will be read: Zarr may have its own idea of a type in memory.
        coding = Coding.of(name, made.dtype, coding.attributes)
        targets.append(Target("/" + made.path, tuple(range(len(shape))), coding))
    dims = tuple(
        Dimension(name, ordered[name], 0, len(ordered[name]), length, f"{name!r} has no such label")
        for name, length in zip(intent.dims, chunks, strict=True)
    )
    return Grid(dims, tuple(targets))


def _declared(
    name: str, kind: pa.DataType, labels: pa.Array | None, *, has_gaps: bool
) -> tuple[Coding, Any]:
    """Choose how a new column is stored: its coding, and the fill value of its array."""
    attributes: dict[str, Any] = {}
    if pa.types.is_timestamp(kind):
        dtype = np.dtype("i8")
        whole = labels is not None and not (labels.cast(pa.int64()).to_numpy() % _SECOND).any()
        unit = "seconds" if whole else "microseconds"
        attributes = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}
    elif pa.types.is_string(kind):
        return Coding.of(name, np.dtype("O"), {}), ""
    else:
        dtype = np.dtype(kind.to_pandas_dtype())
    if dtype.kind == "f":
        return Coding.of(name, dtype, attributes), np.nan
    if dtype.kind == "i" and has_gaps and labels is None:
        lowest = int(np.iinfo(dtype).min)
        return Coding.of(name, dtype, {**attributes, "_FillValue": lowest}), lowest
    return Coding.of(name, dtype, attributes), dtype.type(0)


def _zarr_dtype(coding: Coding) -> Any:
    return "string" if coding.dtype.kind == "O" else coding.dtype


def _chunks(
    shape: tuple[int, ...], dims: tuple[str, ...], asked: Mapping[str, int]
) -> tuple[int, ...]:
    """Take the lengths that were asked for; halve the others until a chunk is a few megabytes."""
    lengths = [
        max(1, size) if asked.get(name, -1) == -1 else asked[name]
        for name, size in zip(dims, shape, strict=True)
    ]
    free = [number for number, name in enumerate(dims) if name not in asked]
    while free and np.prod(lengths, dtype=float) * 8 > _TARGET_CHUNK_BYTES:
        longest = max(free, key=lambda number: lengths[number])
        if lengths[longest] == 1:
            break
        lengths[longest] = -(-lengths[longest] // 2)
    return tuple(lengths)


def _written_as(kind: pa.DataType) -> pa.DataType | None:
    """Say with which type a column of a new group is written, None if with none."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _MICROSECONDS
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    plain = (
        pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
    )
    return kind if plain else None


# -- groups that are there


def _plan_change(session: Session, options: WriteOptions, schema: pa.Schema) -> Intent:
    plan = plan_rows(session, ReadOptions(group=options.group))
    dims = tuple(axis.name for axis in plan.axes)
    everything = tuple(range(len(dims)))
    wanted = {
        column.name: column
        for column in plan.columns
        if column.name in dims or sorted(column.axes) == list(everything)
    }
    problems = []
    for name, column in wanted.items():
        if name not in schema.names:
            what = "dimension" if name in dims else "variable"
            problems.append(f"there is no column for {what} {name!r} ({column.type})")
        elif column.coding is not None:
            try:
                require_writable(column.coding, schema.field(name).type)
            except InvalidInputError as error:
                problems.append(str(error))
        elif not pa.types.is_integer(schema.field(name).type):
            problems.append(f"column {name!r} has positions, and is {schema.field(name).type}")
    repeated = {column.name for column in plan.columns} - wanted.keys()
    for name in schema.names:
        if name in repeated:
            problems.append(
                f"variable {name!r} does not vary along all of {', '.join(dims)}: drop the column"
            )
        elif name not in wanted:
            problems.append(f"column {name!r} is no variable of the group: drop it")
    if options.dims is not None and options.dims != dims:
        problems.append(f"the group's dimensions are {', '.join(dims)}, not those of 'dims'")
    _require_none(problems, options)
    _require_chunks(session, options, dims, wanted)
    columns = {name: column.type for name, column in wanted.items()}
    if options.region is not None:
        require_dimensions("region", options.region, dims)
        return Intent("region", dims, columns, ())
    along = options.append_dim or (dims[0] if len(dims) == 1 else None)
    if along is None:
        raise invalid(
            f"group {options.group!r} is there: say with the option 'append_dim' along which of "
            f"{', '.join(dims)} rows are appended, or overwrite it"
        )
    require_dimensions("append_dim", {along: None}, dims)
    require_dimensions("coords", options.coords, [along])
    for variable in Group.fetch(session, options.group).variables.values():
        if along in variable.dims and variable.name not in wanted:
            raise invalid(
                f"variable {variable.name!r} has the dimension {along!r} too, but is no column "
                "of the table: its new part would be missing. Append with xarray instead"
            )
    return Intent("append", dims, columns, (along,))


def _change(
    session: Session, options: WriteOptions, intent: Intent, labels: Mapping[str, pa.Array]
) -> Grid:
    read = ReadOptions(group=options.group, sel=options.region or {})
    group = Group.fetch(session, options.group)
    plan = plan_rows(session, ReadOptions(group=options.group))
    columns = {column.name: column for column in plan.columns}
    sizes = {axis.name: len(axis) for axis in plan.axes}
    # The part that rows may be in, along each dimension.
    parts = {name: range(size) for name, size in sizes.items()}
    if intent.kind == "region":
        for name, found in select(session, group, intent.dims, sizes, read).items():
            if not isinstance(found, range) or found.step != 1:
                raise invalid(
                    f"the region along {name!r} has gaps: overwrite one stretch of labels at a time"
                )
            parts[name] = found
    after = {}
    for name, size in sizes.items():
        column = columns[name]
        before = pa.array(np.arange(size, dtype=np.int64))
        if column.coding is not None and column.path is not None:
            stored = np.asarray(open_array(session, column.path)[:])
            before = column.coding.decode(stored, nan_as_null=True)
        after[name] = before
        if name in labels:
            new = as_type(pc.unique(labels[name]), before.type)
            _require_labels(name, new)
            after[name] = continued(name, before, new)
            if column.coding is None and not after[name].equals(
                pa.array(np.arange(len(after[name]), dtype=np.int64))
            ):
                raise invalid(
                    f"dimension {name!r} has no labels: its new positions go on from {size}"
                )
            parts[name] = range(size, len(after[name]))
    targets = tuple(
        Target(column.path, column.axes, column.coding)
        for column in plan.columns
        if column.name in intent.variables and column.path and column.coding
    )
    if intent.kind == "append":
        _extend(session, plan.columns, intent, after)
    arrays = [open_array(session, target.path) for target in targets]
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
    return Grid(tuple(dims), targets)


def _extend(session: Session, columns: Any, intent: Intent, after: Mapping[str, pa.Array]) -> None:
    (along,) = intent.unknown
    number = intent.dims.index(along)
    for column in columns:
        if column.path is None or number not in column.axes:
            continue
        array = zarr.open_array(session.store, path=column.path.strip("/"), mode="r+")
        shape = list(array.shape)
        old = shape[column.axes.index(number)]
        shape[column.axes.index(number)] = len(after[along])
        array.resize(tuple(shape))
        if column.name == along:
            array[old:] = encode(column.coding, after[along][old:])


def _require_chunks(
    session: Session, options: WriteOptions, dims: tuple[str, ...], wanted: Mapping[str, Any]
) -> None:
    """Refuse chunks that are not those of the group: a stream says the same before and after."""
    require_dimensions("chunks", options.chunks, dims)
    for column in wanted.values():
        if column.name in dims or not options.chunks:
            continue
        lengths = _regular(open_array(session, column.path))
        for name, asked in options.chunks.items():
            length = lengths[column.axes.index(dims.index(name))]
            if asked not in {-1, length}:
                raise invalid(
                    f"option 'chunks' says {asked} along {name!r}, and {column.name!r} has chunks "
                    f"of {length}: leave it out, or rechunk the group first"
                )


def _regular(array: zarr.Array[Any]) -> tuple[int, ...]:
    lengths = getattr(array.metadata.chunk_grid, "chunk_shape", None)
    if lengths is None:
        raise invalid(
            f"{array.path!r} has chunks of different sizes, which rows are not written to: rechunk "
            "it, or write it with xarray"
        )
    return tuple(lengths)


def _outside(name: str, intent: Intent, labels: pa.Array, part: range) -> str:
    if not len(part):
        return f"there is nothing to write along {name!r}"
    first, last = labels[part.start].as_py(), labels[part.stop - 1].as_py()
    if intent.kind == "region":
        return f"the region along {name!r} is {first!s} to {last!s}: filter the rows"
    return f"{name!r} has {len(part)} labels here, from {first!s} to {last!s}, and not this one"


def _require_labels(name: str, labels: pa.Array) -> None:
    bad = labels.null_count
    if pa.types.is_floating(labels.type):
        bad += pc.sum(pc.is_nan(labels)).as_py() or 0
    if bad:
        raise invalid(f"column {name!r} has nulls or NaN, which are no place along a dimension")


def _require_none(problems: list[str], options: WriteOptions) -> None:
    if problems:
        raise invalid(f"the columns do not fit group {options.group!r}: " + "; ".join(problems))


def _has_arrays(session: Session, path: str) -> bool:
    transaction = session.transaction
    place = Path(path)
    nodes = (transaction.get_node(place.child(name)) for name in transaction.children(place))
    return any(node is not None and node.is_array for node in nodes)
