"""Selections of a read, found along the dimensions of its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xarray as xr

from icefloe.spark.reading.axes import require_dimensions, select_labels, select_positions
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.spark.reading.read_options import invalid_input
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.session import Session
    from icefloe.spark.reading.axes import Positions
    from icefloe.spark.reading.group import Group, Variable
    from icefloe.spark.reading.read_options import ReadOptions

_MOST_BYTES: Final = 1 << 29
"""To find labels takes all of them, and an index besides; metadata may tell of any number."""


def select(
    session: Session,
    group: Group,
    dims: Sequence[str],
    sizes: Mapping[str, int],
    options: ReadOptions,
) -> dict[str, Positions]:
    """Find what is selected of each dimension; labels are read only where they are asked for.

    Raises
    ------
    InvalidInputError
        If a selection matches nothing.
    """
    if both := options.sel.keys() & options.isel.keys():
        raise invalid_input(f"{min(both)!r} is in sel and in isel: select it by one of them")
    found: dict[str, Positions] = {}
    for name in dims:
        if name in options.isel:
            found[name] = select_positions(name, sizes[name], options.isel[name])
        elif name in options.sel:
            labels = _labels(session, group.variables[name]) if group.has_labels(name) else None
            found[name] = select_labels(name, labels, sizes[name], options.sel[name])
        else:
            found[name] = range(sizes[name])
    return found


def require_selectable(options: ReadOptions, dims: Sequence[str]) -> None:
    """Refuse selections along dimensions that are not there."""
    require_dimensions("sel", options.sel, dims)
    require_dimensions("isel", options.isel, dims)


def _labels(session: Session, variable: Variable) -> xr.Variable:
    """Read the labels of a dimension as xarray has them, so that it finds them as it does."""
    array = open_array(session.store, variable.path)
    if array.nbytes > _MOST_BYTES:
        raise invalid_input(
            f"array {variable.path!r} has {array.nbytes} bytes of labels, and sel reads at most "
            f"{_MOST_BYTES}: select positions along {variable.name!r} with 'isel'"
        )
    attributes: dict[str, Any] = dict(
        Coding.of(variable.name, array.dtype, variable.attributes).attributes
    )
    return xr.conventions.decode_cf_variable(
        variable.name,
        xr.Variable(variable.dims, np.asarray(array[:]), attributes),
        decode_times=xr.coders.CFDatetimeCoder(time_unit="us"),
        decode_timedelta=False,
    )
