"""Planning of a write: its kind, whether the columns fit, and which nodes it makes.

`plan_write` checks against the snapshot that the write starts from and writes nothing.
`prepare_write` then makes nodes and labels in a session, and returns where rows go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.group import has_arrays
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import plan_rows
from icefloe.spark.writing.existing_group import plan_update, update_group
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

    Raises if options contradict each other, or the columns do not fit the group: the message has
    all their problems.
    """
    again = [name for number, name in enumerate(schema.names) if name in schema.names[:number]]
    if again:
        raise invalid_input(f"column {again[0]!r} comes twice: drop or rename one of them")
    _require_group(session, options.group)
    if options.region is not None and not overwrite:
        raise invalid_input(
            "a region (option 'replace_where') is overwritten: use mode 'overwrite'"
        )
    if options.region is not None and options.append_dim is not None:
        raise invalid_input("options 'replace_where' and 'append_dim' exclude each other: keep one")
    if not has_arrays(session, options.group):
        if options.region is not None:
            raise invalid_input(
                f"option 'replace_where' needs an existing group, and {options.group!r} has no "
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
    distinct_rows: Callable[[Sequence[str]], pa.Table] | None = None,
) -> Grid:
    """Make the nodes and labels of a write in a session, and return where rows go.

    ``labels`` are those of the unknown dimensions of the plan, in any order. Without ``has_gaps``
    (missing cells) new integers need no fill value, and xarray keeps them integers.
    ``distinct_rows`` returns the distinct rows of some columns, for auxiliary variables.
    """
    if plan.kind == "create":
        return create_group(session, options, plan, labels, has_gaps=has_gaps)
    return update_group(session, options, plan, labels, distinct_rows)


def parse_labels(plan: WritePlan, coords: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Return the labels of the unknown dimensions that the option ``coords`` gives."""
    labels = {}
    for name in plan.unknown:
        values = coords[name] if isinstance(coords[name], list) else [coords[name]]
        kind = plan.columns[name]
        try:
            is_time = pa.types.is_timestamp(kind)
            labels[name] = pa.array(np.array(values, "M8[us]") if is_time else values, kind)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise invalid_input(
                f"option 'coords': {name!r} is a list of {kind}: {error}"
            ) from error
    return labels


def _require_group(session: Session, path: str) -> None:
    for place in (Path(path), *Path(path).ancestors()):
        node = contents.get_node(session, place)
        if node is not None and node.is_array:
            raise invalid_input(f"{place.value!r} is an array: name the group that gets the rows")
