"""Selections of labels (``sel``) and positions (``isel``) along dimensions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xarray as xr

from icefloe.spark.option_parsing import input_error, suggest_name
from icefloe.spark.reading.cf_decoding import Coding
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.spark.reading.axes import Positions
    from icefloe.spark.reading.group import Group, Variable
    from icefloe.spark.reading.read_options import ReadOptions

_MAX_LABEL_BYTES: Final = 1 << 29
"""Limit on labels, which are read into memory; untrusted metadata may claim any number."""

_SLICE_KEYS: Final = ("start", "stop", "step")
_NOT_FOUND: Final = (KeyError, ValueError, TypeError)
"""Exceptions of xarray for a label that does not exist or has the wrong type."""


def select(
    session: Session,
    group: Group,
    dims: Sequence[str],
    sizes: Mapping[str, int],
    options: ReadOptions,
) -> dict[str, Positions]:
    """Return the selected positions of each dimension; raise if a selection is empty.

    Reads only the labels of dimensions in ``sel``.
    """
    if both := options.sel.keys() & options.isel.keys():
        raise input_error(f"dimension {min(both)!r} is in both sel and isel: keep one")
    selected: dict[str, Positions] = {}
    for name in dims:
        if name in options.isel:
            selected[name] = select_positions(name, sizes[name], options.isel[name])
        elif name in options.sel:
            has_labels = group.has_labels(name)
            labels = _read_labels(session, group.variables[name]) if has_labels else None
            selected[name] = select_labels(name, labels, sizes[name], options.sel[name])
        else:
            selected[name] = range(sizes[name])
    return selected


def require_selectable(options: ReadOptions, dims: Sequence[str]) -> None:
    """Raise if a selection contains a dimension that does not exist."""
    require_dimensions("sel", options.sel, dims)
    require_dimensions("isel", options.isel, dims)


def require_dimensions(option: str, selection: Mapping[str, Any], dims: Sequence[str]) -> None:
    """Raise if an option contains a dimension that the table does not have."""
    for name in selection:
        if name not in dims:
            raise input_error(
                f"{option}: there is no dimension {name!r}: {suggest_name(name, dims)}"
            )


def select_positions(name: str, length: int, selection: Any) -> Positions:
    """Select by position, like xarray's ``isel``; negative positions count from the end.

    ``selection`` is an integer, a list of integers, or an object with ``start``, ``stop`` and
    ``step``. Raises if it has another form, or a position does not exist.
    """
    match selection:
        case dict():
            _require_keys("isel", name, selection, *_SLICE_KEYS)
            parts = [selection.get(part) for part in _SLICE_KEYS]
            if any(part is not None and not _is_integer(part) for part in parts) or parts[2] == 0:
                raise _position_error(name, selection)
            positions = range(length)[slice(*parts)]
            positions = positions if positions.step > 0 else positions[::-1]
        case list() if all(map(_is_integer, selection)):
            return _check_positions(name, length, selection)
        case _ if _is_integer(selection):
            return _check_positions(name, length, [selection])
        case _:
            raise _position_error(name, selection)
    if not positions:
        raise input_error(
            f"isel selects nothing along {name!r}: {selection!r} of positions 0 to {length - 1}"
        )
    return positions


def select_labels(
    name: str, coordinate: xr.Variable | None, length: int, selection: Any
) -> Positions:
    """Select by label, like xarray's ``sel``.

    ``selection`` is a label, a list of labels, an object with ``start`` and ``stop`` (both
    inclusive), or an object with ``nearest``. Times are ISO 8601; a partial time, such as
    ``2020-05``, selects the whole period. Without a coordinate, labels are positions. If nothing
    matches, raises with the range of the coordinate.
    """
    if coordinate is None:
        return select_positions(name, length, selection)
    positions = xr.DataArray(
        np.arange(length), dims=[name], coords={name: coordinate.to_index_variable()}
    )
    method = None
    label = selection
    if isinstance(selection, dict):
        if "nearest" in selection:
            _require_keys("sel", name, selection, "nearest")
            label, method = selection["nearest"], "nearest"
        else:
            _require_keys("sel", name, selection, *_SLICE_KEYS)
            label = slice(*map(selection.get, _SLICE_KEYS))
    try:
        matches = np.atleast_1d(positions.sel({name: label}, method=method).values)
    except _NOT_FOUND as error:
        raise input_error(_describe_empty(name, selection, coordinate, positions)) from error
    if not len(matches):
        raise input_error(_describe_empty(name, selection, coordinate, positions))
    return sort_positions(matches)


def sort_positions(positions: NDArray[Any]) -> Positions:
    """Return distinct positions in ascending order, as a range if they are equally spaced."""
    distinct = np.unique(positions).astype(np.int64)
    steps = np.diff(distinct)
    if not len(steps):
        return range(int(distinct[0]), int(distinct[0]) + 1)
    if (steps == steps[0]).all():
        return range(int(distinct[0]), int(distinct[-1]) + 1, int(steps[0]))
    return distinct


def _read_labels(session: Session, variable: Variable) -> xr.Variable:
    """Read the labels of a dimension and decode them with xarray, which then looks them up."""
    array = open_array(session.store, variable.path)
    if array.nbytes > _MAX_LABEL_BYTES:
        raise input_error(
            f"array {variable.path!r} has {array.nbytes} bytes of labels, more than the limit of "
            f"{_MAX_LABEL_BYTES} for sel: select positions along {variable.name!r} with 'isel'"
        )
    coding = Coding.from_attributes(variable.name, array.dtype, variable.attributes)
    return xr.conventions.decode_cf_variable(
        variable.name,
        xr.Variable(variable.dims, np.asarray(array[:]), dict(coding.attributes)),
        decode_times=xr.coders.CFDatetimeCoder(time_unit="us"),
        decode_timedelta=False,
    )


def _check_positions(name: str, length: int, positions: list[int]) -> Positions:
    for position in positions:
        if not -length <= position < length:
            raise input_error(f"isel: {name!r} has no position {position}, only 0 to {length - 1}")
    if not positions:
        raise input_error(f"isel selects nothing along {name!r}: the list is empty")
    return sort_positions(np.array(positions) % length)


def _describe_empty(
    name: str, selection: Any, coordinate: xr.Variable, positions: xr.DataArray
) -> str:
    values = coordinate.values
    if not len(values):
        return f"sel selects nothing along {name!r}, which has no labels"
    low, high = _format_label(values.min()), _format_label(values.max())
    advice = ""
    text = _find_invalid_time(name, selection, positions) if values.dtype.kind == "M" else None
    if text is not None:
        advice = f"; {text!r} is not a time: use the format of these"
    elif isinstance(selection, dict) and values[0] > values[-1]:
        advice = "; they are descending: start the slice at the larger one"
    elif not isinstance(selection, (dict, list)) and _has_nearest(name, selection, positions):
        advice = f"; {json.dumps({'nearest': selection})} selects the closest"
    return (
        f"sel selects nothing along {name!r} with {selection!r}: its labels range from {low} to "
        f"{high}{advice}"
    )


def _find_invalid_time(name: str, selection: Any, positions: xr.DataArray) -> str | None:
    index_type = type(positions.indexes[name])
    labels = selection.values() if isinstance(selection, dict) else np.atleast_1d(selection)
    for label in labels:
        if isinstance(label, str):
            try:
                index_type([label])
            except ValueError:
                return str(label)
    return None


def _has_nearest(name: str, label: Any, positions: xr.DataArray) -> bool:
    """Whether a selection of the nearest label would succeed."""
    try:
        positions.sel({name: label}, method="nearest")
    except _NOT_FOUND:
        return False
    return True


def _format_label(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]"))
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_keys(option: str, name: str, selection: dict[str, Any], *keys: str) -> None:
    for key in selection:
        if key not in keys:
            raise input_error(
                f"{option} along {name!r}: unknown key {key!r}, expected one of: {', '.join(keys)}"
            )


def _position_error(name: str, selection: Any) -> Exception:
    return input_error(
        f"isel along {name!r}: expected an integer, a list of integers, or an object with start, "
        f"stop and step, got {selection!r}"
    )
