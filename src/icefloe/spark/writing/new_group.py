"""Writing rows to a new group: the types and chunks of its arrays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import input_error, suggest_name
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.spark.reading.selections import require_dimensions
from icefloe.spark.writing.cf_encoding import cast_column, encode
from icefloe.spark.writing.write_grid import BLOCK_COLUMN, Dimension, Grid, Target
from icefloe.spark.writing.write_plan import WritePlan, require_labels, require_no_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.spark.writing.write_options import WriteOptions

_TARGET_CHUNK_BYTES: Final = 4 << 20
_MIN_LABEL_CHUNK_LENGTH: Final = 1024
"""Avoids tiny chunks of labels after small appends."""

_SECOND: Final = 1_000_000  # microseconds
_TIMESTAMP: Final = pa.timestamp("us")
_NODE_NAME: Final = re.compile(r"(?!__|\.+$|zarr\.json$)[^/]+")
"""Names that Zarr allows for a node."""


def plan_new_group(
    session: Session, options: WriteOptions, schema: pa.Schema, dims: tuple[str, ...] | None
) -> WritePlan:
    """Plan a new group; raise if the columns cannot be stored in one."""
    if not dims:
        nodes = contents.iter_nodes_below(session, Path("/"))
        groups = [node.path.value for node in nodes if not node.is_array]
        raise input_error(
            f"group {options.group!r} has no arrays ({suggest_name(options.group, groups)}): to "
            "create them, set the option 'dims' to the columns that are dimensions, in order; "
            f"the columns are {', '.join(schema.names)}"
        )
    problems = [
        f"there is no column for dimension {name!r} ({suggest_name(name, schema.names)})"
        for name in dims
        if name not in schema.names
    ]
    columns = {}
    for field in schema:
        if not _NODE_NAME.fullmatch(field.name) or field.name == BLOCK_COLUMN:
            problems.append(f"column {field.name!r} has an invalid name for an array: rename it")
        kind = _choose_type(field.type)
        if kind is None or (field.name in dims and pa.types.is_boolean(kind)):
            problems.append(
                f"column {field.name!r} has the unsupported type {field.type}: cast or drop it"
            )
        else:
            columns[field.name] = kind
    if set(schema.names) <= set(dims):
        problems.append("all columns are dimensions: add a column for a variable")
    require_no_problems(problems, options)
    require_dimensions("chunks", options.chunks, dims)
    require_dimensions("coords", options.coords, dims)
    if options.append_dim is not None:
        # A stream has the same options for the first micro-batch and for later appends.
        require_dimensions("append_dim", {options.append_dim: None}, dims)
    if options.leave_missing:
        raise input_error(
            "option 'leave_missing' is only for appends: a new group has a variable per column"
        )
    return WritePlan("create", tuple(dims), columns, tuple(dims))


def create_group(
    session: Session,
    options: WriteOptions,
    plan: WritePlan,
    labels: Mapping[str, pa.Array],
    *,
    has_gaps: bool,
) -> Grid:
    """Create the arrays of a group, replacing existing arrays, and write the labels."""
    for node in contents.list_child_nodes(session, Path(options.group)):
        if node.is_array:
            contents.delete_node(session, node.path)
    group = zarr.open_group(session.store, path=options.group.strip("/"), mode="a", zarr_format=3)
    ordered = {
        name: pc.unique(cast_column(labels[name], plan.columns[name])).sort() for name in plan.dims
    }
    for name, values in ordered.items():
        if not len(values):
            raise input_error(
                f"there are no rows: the new dimension {name!r} needs at least one label"
            )
        require_labels(name, values)
        coding, _ = _choose_coding(name, values.type, values, has_gaps=False)
        array = group.create_array(
            name,
            shape=(len(values),),
            chunks=(max(len(values), _MIN_LABEL_CHUNK_LENGTH),),
            dtype=_get_zarr_dtype(coding),
            dimension_names=[name],
            attributes=dict(coding.attributes),
        )
        array[:] = encode(coding, values)
    shape = tuple(len(ordered[name]) for name in plan.dims)
    chunks = _choose_chunks(shape, plan.dims, options.chunks)
    targets = []
    for name in plan.variables:
        coding, fill = _choose_coding(name, plan.columns[name], None, has_gaps=has_gaps)
        created = group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype=_get_zarr_dtype(coding),
            fill_value=fill,
            dimension_names=list(plan.dims),
            attributes=dict(coding.attributes),
        )
        # Zarr may read the array back with another type.
        coding = Coding.from_attributes(name, created.dtype, coding.attributes)
        targets.append(Target("/" + created.path, tuple(range(len(shape))), coding))
    dims = tuple(
        Dimension(name, ordered[name], 0, len(ordered[name]), length, f"{name!r} has no such label")
        for name, length in zip(plan.dims, chunks, strict=True)
    )
    return Grid(dims, tuple(targets))


def _choose_coding(
    name: str, kind: pa.DataType, labels: pa.Array | None, *, has_gaps: bool
) -> tuple[Coding, Any]:
    """Return the coding of a new column and the fill value of its array."""
    attributes: dict[str, Any] = {}
    dtype = np.dtype("i8" if pa.types.is_timestamp(kind) else kind.to_pandas_dtype())
    if pa.types.is_timestamp(kind):
        is_exact = labels is not None and not (labels.cast(pa.int64()).to_numpy() % _SECOND).any()
        unit = "seconds" if is_exact else "microseconds"
        attributes = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}
    fill: Any = {"O": "", "f": np.nan}.get(dtype.kind, dtype.type(0))
    if dtype.kind == "i" and has_gaps and labels is None:
        fill = attributes["_FillValue"] = int(np.iinfo(dtype).min)
    return Coding.from_attributes(name, dtype, attributes), fill


def _get_zarr_dtype(coding: Coding) -> Any:
    return "string" if coding.dtype.kind == "O" else coding.dtype


def _choose_chunks(
    shape: tuple[int, ...], dims: tuple[str, ...], requested: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the requested chunk lengths; halve the others down to the target size."""
    lengths = [
        max(1, size) if requested.get(name, -1) == -1 else requested[name]
        for name, size in zip(dims, shape, strict=True)
    ]
    automatic = [number for number, name in enumerate(dims) if name not in requested]
    while automatic and np.prod(lengths, dtype=float) * 8 > _TARGET_CHUNK_BYTES:
        longest = max(automatic, key=lambda number: lengths[number])
        if lengths[longest] == 1:
            break
        lengths[longest] = -(-lengths[longest] // 2)
    return tuple(lengths)


def _choose_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which a new column is written, None if it is unsupported."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _TIMESTAMP
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    is_supported = (
        pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
    )
    return kind if is_supported else None
