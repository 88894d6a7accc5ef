"""A write, planned: what kind it is, whether the columns fit, and which nodes it makes.

Checked against the snapshot that the write starts from, before anything is written. `prepare_write`
then makes nodes and labels in a session, and returns where rows go (`write_grid`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.model.path import Path
from icefloe.session import contents
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.group import has_arrays
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.rows import plan_rows
from icefloe.spark.writing.existing_group import plan_update, update_group
from icefloe.spark.writing.new_group import create_group, plan_new_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icefloe.session import Session
    from icefloe.spark.writing.write_grid import Grid
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan


def plan_write(
    session: Session, options: WriteOptions, schema: pa.Schema, *, overwrite: bool
) -> WritePlan:
    """Decide what a write does, and whether it can; nothing is written.

    Raises
    ------
    InvalidInputError
        If options do not fit, or the columns are not those of the group: all of what is wrong
        with them at once.
    """
    again = [name for place, name in enumerate(schema.names) if name in schema.names[:place]]
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
                f"option 'replace_where' needs a group that is there, and {options.group!r} has no "
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
    intent: WritePlan,
    labels: Mapping[str, pa.Array],
    *,
    has_gaps: bool = True,
    distinct_rows: Callable[[Sequence[str]], pa.Table] | None = None,
) -> Grid:
    """Make the nodes and labels of a write in a session, and tell where rows go.

    Parameters
    ----------
    labels
        The labels of the dimensions that the intent does not know, in any order.
    has_gaps
        Whether cells may be missing; if not, new integers need no fill value, and xarray keeps
        them integers.
    distinct_rows
        Tells what rows have in some columns. Needed for those beside the table.
    """
    if intent.kind == "create":
        return create_group(session, options, intent, labels, has_gaps=has_gaps)
    return update_group(session, options, intent, labels, distinct_rows)


def parse_labels(intent: WritePlan, coords: Mapping[str, Any]) -> dict[str, pa.Array]:
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
            raise invalid_input(
                f"option 'coords': {name!r} is a list of {wanted}: {error}"
            ) from error
    return found


def _require_group(session: Session, path: str) -> None:
    """Refuse an array where a group is wanted."""
    for place in (Path(path), *Path(path).ancestors()):
        node = contents.get_node(session, place)
        if node is not None and node.is_array:
            raise invalid_input(f"{place.value!r} is an array: name the group that gets the rows")
