"""Encoding of Spark columns by CF conventions: the inverse of `reading.cf_decoding`.

Null becomes the variable's missing value. If it has none, null is an error rather than a zero.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xarray as xr

from icefloe.spark.option_parsing import invalid_input

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.spark.reading.cf_decoding import Coding

_SCALED: Final = frozenset({"scale_factor", "add_offset", "_Unsigned"})
_ISO_TIME: Final = re.compile(r"(-?\d{4,})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?")
_DATE_FORMAT: Final = """date_format(time, "yyyy-MM-dd'T'HH:mm:ss")"""


def require_writable(coding: Coding, given: pa.DataType) -> None:
    """Raise if a column has a type whose values a variable cannot hold unchanged."""
    if coding.is_calendar_text and not _fits(given, coding.type):
        raise invalid_input(
            f"column {coding.name!r} is {given}, and the variable has times of the calendar "
            f"{coding.attributes['calendar']!r}, which Spark does not support: write them as they "
            f"are read, as text such as 2001-02-28T12:00:00; {_DATE_FORMAT} converts timestamps"
        )
    if not _fits(given, coding.type):
        raise invalid_input(
            f"column {coding.name!r} is {given}, and the variable holds {coding.type}: cast it "
            "in Spark"
        )
    if pa.types.is_duration(coding.type):
        raise invalid_input(
            f"variable {coding.name!r} holds durations, which are not written from Spark"
        )


def missing_value(coding: Coding) -> Any:
    """Return the stored value that means missing, None if there is none."""
    if len(coding.fills):
        return coding.fills[0]
    match coding.dtype.kind:
        case "f":
            return np.nan
        case "M":
            return np.array("NaT", coding.dtype)[()]
        case _:
            return None


def require_fill(coding: Coding) -> None:
    """Raise if a variable that is to be left missing has no missing value."""
    if missing_value(coding) is None:
        raise invalid_input(
            f"variable {coding.name!r} cannot be left missing, because it has no _FillValue: give "
            "a column for it"
        )


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to a type that holds all its values; times of a time zone become UTC."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == kind else column.cast(kind)


def encode(coding: Coding, column: pa.Array) -> NDArray[Any]:
    """Return the stored values of a column; raise for a null or value that they cannot hold."""
    column = as_type(column, coding.type)
    missing = missing_value(coding)
    if column.null_count and missing is None:
        raise invalid_input(
            f"column {coding.name!r} has nulls, and the variable has no _FillValue to write for "
            "them: drop those rows, or fill them with df.fillna"
        )
    if coding.is_calendar_text:
        return _encode_calendar_times(coding, column)
    if "calendar" in coding.attributes:
        return _encode_times(coding, column)
    is_missing = np.asarray(column.is_null())
    values: NDArray[Any]
    if coding.attributes.keys() & _SCALED:
        return _encode_scaled(coding, column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    match coding.dtype.kind:
        case "f":
            given = column.to_numpy(zero_copy_only=False)
            with np.errstate(over="ignore"):
                values = given.astype(coding.dtype)
            _require_lossless(coding, given, values, np.isinf(values) & ~np.isinf(given))
            _require_no_fill(coding, values[~is_missing])
            values[is_missing] = missing
            return values
        case "i" | "u":
            integers = pa.uint64() if pa.types.is_decimal(coding.type) else pa.int64()
            filled = column.cast(integers).fill_null(0).to_numpy(zero_copy_only=False)
            limits = np.iinfo(coding.dtype)
            if len(filled) and (filled.min() < limits.min or filled.max() > limits.max):
                raise invalid_input(
                    f"column {coding.name!r} has values outside of {limits.min} to {limits.max}, "
                    f"which the variable, of type {coding.dtype}, does not hold"
                )
            values = filled.astype(coding.dtype)
            if missing is not None:
                _require_no_fill(coding, values[~is_missing])
                values[is_missing] = missing
            return values
        case "M":
            given = column.to_numpy(zero_copy_only=False).astype("M8[us]")
            values = given.astype(coding.dtype)
            _require_lossless(coding, given, values, (values != given) & ~is_missing)
            return values
        case _:
            given = np.empty(len(column), object)
            given[:] = [missing if value is None else value for value in column.to_pylist()]
            values = given.astype(coding.dtype)
            _require_lossless(coding, given, values, np.asarray(values.astype(object) != given))
            return values


def _require_no_fill(coding: Coding, values: NDArray[Any]) -> None:
    """Raise for a value that would be read as missing."""
    found = values[np.isin(values, coding.fills)]
    if len(found):
        raise invalid_input(
            f"column {coding.name!r} has the value {found[0]}, which means missing in that "
            "variable (_FillValue): write null, or another value"
        )


def _require_lossless(
    coding: Coding, given: NDArray[Any], decoded: NDArray[Any], is_lost: NDArray[np.bool_]
) -> None:
    """Raise for a value that would be read as another one."""
    if is_lost.any():
        first = int(np.flatnonzero(is_lost)[0])
        packed = {name: coding.attributes[name] for name in _SCALED & coding.attributes.keys()}
        raise invalid_input(
            f"column {coding.name!r} has the value {given[first]}, which the variable, of type "
            f"{coding.dtype}{f' with {packed}' if packed else ''}, does not hold: it would be read "
            f"as {decoded[first]}. Write null, or a value that it holds"
        )


def _encode_scaled(coding: Coding, values: NDArray[Any]) -> NDArray[Any]:
    """Pack values; each is read back to within half a step."""
    if missing_value(coding) is None and np.isnan(values).any():
        raise invalid_input(
            f"column {coding.name!r} has NaN, and the variable has no _FillValue to write for it: "
            "drop those rows, or fill them with df.fillna"
        )
    stored = _encode_cf(coding, values, coding.attributes)
    decoded = coding.decode(stored, nan_as_null=False).cast(pa.float64())
    read = decoded.to_numpy(zero_copy_only=False)
    is_float = coding.dtype.kind == "f"
    step = 0.0 if is_float else abs(float(coding.attributes.get("scale_factor", 1)))
    rounding = max(1e-6, float(np.finfo(coding.dtype).eps) if is_float else 0.0)
    offset = abs(float(coding.attributes.get("add_offset", 0)))
    near = np.abs(read - values) <= 0.5 * step + rounding * np.maximum(np.abs(values), offset)
    _require_lossless(coding, values, read, ~near & ~np.isnan(values))
    return stored


def _encode_times(coding: Coding, column: pa.Array) -> NDArray[Any]:
    values = column.to_numpy(zero_copy_only=False).astype("M8[us]")
    encoding = {**coding.attributes, "dtype": coding.dtype}
    stored = _encode_cf(coding, values, encoding)
    back = coding.decode(stored, nan_as_null=True).to_numpy(zero_copy_only=False).astype("M8[us]")
    # Floats round: days since the year 1 are exact to some microseconds.
    tolerance = np.timedelta64(0 if coding.dtype.kind in "iu" else 1000, "us")
    if not ((np.abs(back - values) <= tolerance) | (np.isnat(back) & np.isnat(values))).all():
        raise invalid_input(
            f"column {coding.name!r} has times that {coding.attributes['units']!r} in "
            f"{coding.dtype} cannot represent exactly: truncate them in Spark with date_trunc"
        )
    return stored


def _encode_calendar_times(coding: Coding, column: pa.Array) -> NDArray[Any]:
    """Encode times given as text, which must be as `Coding.decode` returns it, to match labels."""
    stored = np.zeros(len(column), coding.dtype)
    is_missing = np.asarray(column.is_null())
    if is_missing.any():
        stored[is_missing] = missing_value(coding)
    texts = column.drop_null().to_pylist()
    if texts:
        times = np.array([_parse_calendar_time(coding, text) for text in texts], object)
        encoding = {**coding.attributes, "dtype": coding.dtype}
        stored[~is_missing] = _encode_cf(coding, times, encoding)
    if not coding.decode(stored, nan_as_null=True).equals(column):
        raise invalid_input(
            f"column {coding.name!r} has times that {coding.attributes['units']!r} in "
            f"{coding.dtype} cannot represent exactly"
        )
    return stored


def _parse_calendar_time(coding: Coding, text: str) -> Any:
    import cftime  # noqa: PLC0415 - only for these calendars

    found = _ISO_TIME.fullmatch(text)
    if found is None:
        raise invalid_input(
            f"column {coding.name!r} has {text!r}, and times are written as they are read, such as "
            f"2001-02-28T12:00:00: {_DATE_FORMAT} converts timestamps"
        )
    *whole, fraction = found.groups("000000")
    calendar = coding.attributes["calendar"]
    try:
        return cftime.datetime(*map(int, whole), int(fraction), calendar=calendar)
    except ValueError as error:
        raise invalid_input(
            f"column {coding.name!r} has the time {text!r}, which the calendar {calendar!r} of the "
            f"variable does not have: {error}"
        ) from error


def _encode_cf(coding: Coding, values: NDArray[Any], encoding: Any) -> NDArray[Any]:
    variable = xr.Variable(("row",), values, encoding={"dtype": coding.dtype, **encoding})
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # Lossy values are found by decoding the result.
            warnings.simplefilter("ignore")
            encoded = xr.conventions.encode_cf_variable(variable, name=coding.name)
        stored = np.asarray(encoded.values)
    except (ValueError, TypeError, OverflowError) as error:
        raise invalid_input(f"column {coding.name!r} cannot be encoded: {error}") from error
    return stored.astype(coding.dtype, copy=False)


def _fits(given: pa.DataType, held: pa.DataType) -> bool:
    if given == held:
        return True
    if pa.types.is_timestamp(held):
        return bool(pa.types.is_timestamp(given) or pa.types.is_date(given))
    if pa.types.is_string(held):
        return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
    if pa.types.is_integer(held):
        return bool(pa.types.is_integer(given) and given.bit_width <= held.bit_width)
    if pa.types.is_decimal(held):
        whole = pa.types.is_decimal(given) and given.scale == 0
        return bool(pa.types.is_integer(given) or whole)
    if pa.types.is_floating(held):
        if pa.types.is_floating(given):
            return bool(given.bit_width <= held.bit_width)
        # Integers of half the width are exact.
        return bool(pa.types.is_integer(given) and given.bit_width <= held.bit_width // 2)
    return False
