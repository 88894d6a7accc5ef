"""Planning and preparation of a write.

`plan_write` checks options and columns against the snapshot that the write starts from, and writes
nothing. `prepare_write` then writes nodes and labels to a session, and returns the `Grid`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import input_error
from icefloe.spark.reading.group import has_arrays
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import plan_rows
from icefloe.spark.writing.existing_group import plan_update, prepare_group
from icefloe.spark.writing.new_group import create_group, plan_new_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icefloe.spark.writing.write_grid import Grid
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan


def plan_write(
    session: Session, options: WriteOptions, schema: pa.Schema, *, overwrite: bool
) -> WritePlan:
    """Plan a write; nothing is written.

    Raises if options contradict each other, or with all problems of columns that do not match the
    group.
    """
    duplicates = [name for number, name in enumerate(schema.names) if name in schema.names[:number]]
    if duplicates:
        raise input_error(f"there are two columns {duplicates[0]!r}: drop or rename one")
    _require_group(session, options.group)
    if options.region is not None and not overwrite:
        raise input_error("a region (option 'replace_where') needs mode 'overwrite'")
    if options.region is not None and options.append_dim is not None:
        raise input_error(
            "options 'replace_where' and 'append_dim' are mutually exclusive: keep one"
        )
    if not has_arrays(session, options.group):
        if options.region is not None:
            raise input_error(
                f"option 'replace_where' needs an existing group, but {options.group!r} has no "
                f"arrays in {session.connection.storage.url}: create it with the option 'dims'"
            )
        return plan_new_group(session, options, schema, options.dims)
    if overwrite and options.region is None:
        dims = options.dims
        if dims is None:
            plan = plan_rows(session, ReadOptions(group=options.group))
            dims = tuple(axis.name for axis in plan.axes)
        return plan_new_group(session, options, schema, dims)
    return plan_update(session, options, schema)


def prepare_write(
    session: Session,
    options: WriteOptions,
    plan: WritePlan,
    labels: Mapping[str, pa.Array],
    *,
    has_gaps: bool = True,
    fetch_distinct_rows: Callable[[Sequence[str]], pa.Table] | None = None,
) -> Grid:
    """Write the nodes and labels of a write to a session, and return its grid.

    ``labels`` are the new labels of the growing dimensions, in any order. Without ``has_gaps``
    (missing cells), new integer variables have no fill value, and xarray does not convert them to
    floats. ``fetch_distinct_rows`` returns some columns of the rows, in any order, preferably
    without duplicates; it is required if auxiliary variables have columns.
    """
    if plan.kind == "create":
        return create_group(session, options, plan, labels, has_gaps=has_gaps)
    return prepare_group(session, options, plan, labels, fetch_distinct_rows)


def parse_labels(plan: WritePlan, coords: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Parse the labels of the growing dimensions from the option ``coords``."""
    labels = {}
    for name in plan.growing_dims:
        values = coords[name] if isinstance(coords[name], list) else [coords[name]]
        kind = plan.columns[name]
        try:
            is_time = pa.types.is_timestamp(kind)
            labels[name] = pa.array(np.array(values, "M8[us]") if is_time else values, kind)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise input_error(
                f"option 'coords': expected a list of {kind} for {name!r}: {error}"
            ) from error
    return labels


def _require_group(session: Session, path: str) -> None:
    for node_path in (Path(path), *Path(path).ancestors()):
        node = contents.get_node(session, node_path)
        if node is not None and node.is_array:
            raise input_error(f"{node_path.value!r} is an array: set 'group' to a group")
