"""Encoding of columns by CF conventions: the inverse of `reading.cf_decoding`.

Nulls become the missing value of the variable. If it has none, nulls are an error.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xarray as xr

from icefloe.spark.option_parsing import input_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.spark.reading.cf_decoding import Coding

_SCALING: Final = frozenset({"scale_factor", "add_offset", "_Unsigned"})
_ISO_TIME: Final = re.compile(r"(-?\d{4,})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?")
_DATE_FORMAT: Final = """date_format(time, "yyyy-MM-dd'T'HH:mm:ss")"""


def require_writable(coding: Coding, column_type: pa.DataType) -> None:
    """Raise if a column has a type whose values the variable cannot represent."""
    can_cast = _can_cast(column_type, coding.type)
    if coding.has_calendar_text and not can_cast:
        raise input_error(
            f"column {coding.name!r} is {column_type}, but the variable has times of the calendar "
            f"{coding.attributes['calendar']!r}, which Spark does not support: write them as text "
            f"such as 2001-02-28T12:00:00; {_DATE_FORMAT} converts timestamps"
        )
    if not can_cast:
        raise input_error(
            f"column {coding.name!r}: expected {coding.type}, got {column_type}: cast it in Spark"
        )
    if pa.types.is_duration(coding.type):
        raise input_error(
            f"variable {coding.name!r} has durations, which cannot be written from Spark"
        )


def get_fill(coding: Coding) -> Any:
    """Return the stored value that represents missing values, None if there is none."""
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
    """Raise if a variable in ``leave_missing`` has no missing value."""
    if get_fill(coding) is None:
        raise input_error(
            f"variable {coding.name!r} cannot be left missing, because it has no _FillValue: add a "
            "column for it"
        )


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to a type that can represent its values; times with a time zone become UTC."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == kind else column.cast(kind)


def encode(coding: Coding, column: pa.Array) -> NDArray[Any]:
    """Encode a column as stored values; raise for a null or value that has no encoding."""
    column = cast_column(column, coding.type)
    missing = get_fill(coding)
    if column.null_count and missing is None:
        raise input_error(
            f"column {coding.name!r} has nulls, but the variable has no _FillValue for them: drop "
            "those rows, or fill them with df.fillna"
        )
    if coding.has_calendar_text:
        return _encode_calendar_times(coding, column)
    if "calendar" in coding.attributes:
        return _encode_times(coding, column)
    is_missing = np.asarray(column.is_null())
    values: NDArray[Any]
    if coding.attributes.keys() & _SCALING:
        return _encode_scaled(coding, column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    match coding.dtype.kind:
        case "f":
            inputs = column.to_numpy(zero_copy_only=False)
            with np.errstate(over="ignore"):
                values = inputs.astype(coding.dtype)
            _require_lossless(coding, inputs, values, np.isinf(values) & ~np.isinf(inputs))
            _require_no_fill(coding, values[~is_missing])
            values[is_missing] = missing
            return values
        case "i" | "u":
            integers = pa.uint64() if pa.types.is_decimal(coding.type) else pa.int64()
            filled = column.cast(integers).fill_null(0).to_numpy(zero_copy_only=False)
            limits = np.iinfo(coding.dtype)
            if len(filled) and (filled.min() < limits.min or filled.max() > limits.max):
                raise input_error(
                    f"column {coding.name!r} has values outside {limits.min} to {limits.max}, the "
                    f"range of the variable's type {coding.dtype}"
                )
            values = filled.astype(coding.dtype)
            if missing is not None:
                _require_no_fill(coding, values[~is_missing])
                values[is_missing] = missing
            return values
        case "M":
            inputs = column.to_numpy(zero_copy_only=False).astype("M8[us]")
            values = inputs.astype(coding.dtype)
            _require_lossless(coding, inputs, values, (values != inputs) & ~is_missing)
            return values
        case _:
            inputs = np.empty(len(column), object)
            inputs[:] = [missing if value is None else value for value in column.to_pylist()]
            values = inputs.astype(coding.dtype)
            _require_lossless(coding, inputs, values, np.asarray(values.astype(object) != inputs))
            return values


def _require_no_fill(coding: Coding, values: NDArray[Any]) -> None:
    """Raise for a value that would be read as missing."""
    fills = values[np.isin(values, coding.fills)]
    if len(fills):
        raise input_error(
            f"column {coding.name!r} has the value {fills[0]}, which represents missing values of "
            "the variable (_FillValue): write null, or another value"
        )


def _require_lossless(
    coding: Coding, inputs: NDArray[Any], decoded: NDArray[Any], is_lost: NDArray[np.bool_]
) -> None:
    """Raise for a value that would be read as a different one."""
    if is_lost.any():
        first = int(np.flatnonzero(is_lost)[0])
        scaling = {name: coding.attributes[name] for name in _SCALING & coding.attributes.keys()}
        raise input_error(
            f"column {coding.name!r} has the value {inputs[first]}, which would be read as "
            f"{decoded[first]} (type {coding.dtype}{f' with {scaling}' if scaling else ''}): write "
            "null, or another value"
        )


def _encode_scaled(coding: Coding, values: NDArray[Any]) -> NDArray[Any]:
    """Apply scale and offset; each value is read back to within half a step."""
    if get_fill(coding) is None and np.isnan(values).any():
        raise input_error(
            f"column {coding.name!r} has NaN, but the variable has no _FillValue for it: drop "
            "those rows, or fill them with df.fillna"
        )
    stored = _encode_cf(coding, values, coding.attributes)
    decoded = coding.decode(stored, nan_as_null=False).cast(pa.float64())
    read_back = decoded.to_numpy(zero_copy_only=False)
    is_float = coding.dtype.kind == "f"
    step = 0.0 if is_float else abs(float(coding.attributes.get("scale_factor", 1)))
    rounding = max(1e-6, float(np.finfo(coding.dtype).eps) if is_float else 0.0)
    offset = abs(float(coding.attributes.get("add_offset", 0)))
    tolerance = 0.5 * step + rounding * np.maximum(np.abs(values), offset)
    is_lost = ~(np.abs(read_back - values) <= tolerance) & ~np.isnan(values)
    _require_lossless(coding, values, read_back, is_lost)
    return stored


def _encode_times(coding: Coding, column: pa.Array) -> NDArray[Any]:
    values = column.to_numpy(zero_copy_only=False).astype("M8[us]")
    encoding = {**coding.attributes, "dtype": coding.dtype}
    stored = _encode_cf(coding, values, encoding)
    column = coding.decode(stored, nan_as_null=True)
    decoded = column.to_numpy(zero_copy_only=False).astype("M8[us]")
    # Floats are rounded: days since the year 1 are exact to a few microseconds.
    tolerance = np.timedelta64(0 if coding.dtype.kind in "iu" else 1000, "us")
    is_equal = (np.abs(decoded - values) <= tolerance) | (np.isnat(decoded) & np.isnat(values))
    if not is_equal.all():
        raise input_error(
            f"column {coding.name!r} has times that {coding.attributes['units']!r} in "
            f"{coding.dtype} cannot represent exactly: truncate them in Spark with date_trunc"
        )
    return stored


def _encode_calendar_times(coding: Coding, column: pa.Array) -> NDArray[Any]:
    """Encode times as text, which must have the format of `Coding.decode` to match labels."""
    stored = np.zeros(len(column), coding.dtype)
    is_missing = np.asarray(column.is_null())
    if is_missing.any():
        stored[is_missing] = get_fill(coding)
    texts = column.drop_null().to_pylist()
    if texts:
        times = np.array([_parse_calendar_time(coding, text) for text in texts], object)
        encoding = {**coding.attributes, "dtype": coding.dtype}
        stored[~is_missing] = _encode_cf(coding, times, encoding)
    if not coding.decode(stored, nan_as_null=True).equals(column):
        raise input_error(
            f"column {coding.name!r} has times that {coding.attributes['units']!r} in "
            f"{coding.dtype} cannot represent exactly"
        )
    return stored


def _parse_calendar_time(coding: Coding, text: str) -> Any:
    import cftime  # noqa: PLC0415 - only for these calendars

    match = _ISO_TIME.fullmatch(text)
    if match is None:
        raise input_error(
            f"column {coding.name!r}: expected a time such as 2001-02-28T12:00:00, got {text!r}; "
            f"{_DATE_FORMAT} converts timestamps"
        )
    *parts, microseconds = match.groups("000000")
    calendar = coding.attributes["calendar"]
    try:
        return cftime.datetime(*map(int, parts), int(microseconds), calendar=calendar)
    except ValueError as error:
        raise input_error(
            f"column {coding.name!r} has the time {text!r}, which does not exist in the calendar "
            f"{calendar!r} of the variable: {error}"
        ) from error


def _encode_cf(coding: Coding, values: NDArray[Any], encoding: Any) -> NDArray[Any]:
    variable = xr.Variable(("row",), values, encoding={"dtype": coding.dtype, **encoding})
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # The caller detects lossy values by decoding the result.
            warnings.simplefilter("ignore")
            encoded = xr.conventions.encode_cf_variable(variable, name=coding.name)
        stored = np.asarray(encoded.values)
    except (ValueError, TypeError, OverflowError) as error:
        raise input_error(f"column {coding.name!r} cannot be encoded: {error}") from error
    return stored.astype(coding.dtype, copy=False)


def _can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target:
        return True
    if pa.types.is_timestamp(target):
        return bool(pa.types.is_timestamp(source) or pa.types.is_date(source))
    if pa.types.is_string(target):
        return bool(pa.types.is_string(source) or pa.types.is_large_string(source))
    if pa.types.is_integer(target):
        return bool(pa.types.is_integer(source) and source.bit_width <= target.bit_width)
    if pa.types.is_decimal(target):
        is_integral = pa.types.is_decimal(source) and source.scale == 0
        return bool(pa.types.is_integer(source) or is_integral)
    if pa.types.is_floating(target):
        if pa.types.is_floating(source):
            return bool(source.bit_width <= target.bit_width)
        # Integers of up to half the width are exact.
        return bool(pa.types.is_integer(source) and source.bit_width <= target.bit_width // 2)
    return False
