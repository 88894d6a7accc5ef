"""Columns of Spark as the stored values of a variable: the way back from `icefloe.spark.cf`.

Null becomes what the variable says for missing. Where it has no way to say that, null is an error:
a zero that nobody measured is worse than none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xarray as xr

from icefloe.spark.options import invalid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.spark.cf import Coding

_SCALED: Final = frozenset({"scale_factor", "add_offset", "_Unsigned"})
_FILLS: Final = ("_FillValue", "missing_value")


def require_writable(coding: Coding, given: pa.DataType) -> None:
    """Refuse a column whose values a variable cannot hold without changing them."""
    if not _fits(given, coding.type):
        raise invalid(
            f"column {coding.name!r} is {given}, and the variable holds {coding.type}: cast it "
            f"in Spark, where you decide what is lost"
        )
    if pa.types.is_duration(coding.type):
        raise invalid(f"variable {coding.name!r} holds durations, which are not written from Spark")
    if "calendar" in coding.attributes and pa.types.is_string(coding.type):
        raise invalid(
            f"variable {coding.name!r} has times of the calendar "
            f"{coding.attributes['calendar']!r}, which Spark has no dates for: write it with xarray"
        )


def missing_value(coding: Coding) -> Any:
    """Return what a variable stores where nothing is, None if it has no way to say so."""
    for name in _FILLS:
        if name in coding.attributes:
            return np.ravel(coding.attributes[name])[0]
    return np.nan if coding.dtype.kind == "f" else None


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Bring a column to a type that holds all its values; times of a time zone become UTC."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == wanted else column.cast(wanted)


def encode(coding: Coding, column: pa.Array) -> NDArray[Any]:
    """Make stored values of a column.

    Raises
    ------
    InvalidInputError
        If something is null and the variable cannot say so, or a value does not fit.
    """
    column = as_type(column, coding.type)
    missing = missing_value(coding)
    if column.null_count and missing is None:
        raise invalid(
            f"column {coding.name!r} has nulls, and the variable has no _FillValue to write for "
            "them: drop those rows, or fill them with df.fillna"
        )
    if "calendar" in coding.attributes:
        return _times(coding, column)
    is_missing = np.asarray(column.is_null())
    values: NDArray[Any]
    if coding.attributes.keys() & _SCALED:
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return _by_xarray(coding, values, coding.attributes)
    match coding.dtype.kind:
        case "f":
            values = column.to_numpy(zero_copy_only=False).astype(coding.dtype)
            _require_no_fill(coding, values[~is_missing], missing)
            values[is_missing] = missing
            return values
        case "i" | "u":
            integers = pa.uint64() if pa.types.is_decimal(coding.type) else pa.int64()
            filled = column.cast(integers).fill_null(0).to_numpy(zero_copy_only=False)
            limits = np.iinfo(coding.dtype)
            if len(filled) and (filled.min() < limits.min or filled.max() > limits.max):
                raise invalid(
                    f"column {coding.name!r} has values outside of {limits.min} to {limits.max}, "
                    f"which the variable, of type {coding.dtype}, does not hold"
                )
            values = filled.astype(coding.dtype)
            if missing is not None:
                _require_no_fill(coding, values[~is_missing], missing)
                values[is_missing] = missing
            return values
        case "M":
            values = column.to_numpy(zero_copy_only=False).astype(coding.dtype)
            return values
        case _:
            values = np.empty(len(column), object)
            values[:] = [missing if one is None else one for one in column.to_pylist()]
            return values.astype(coding.dtype)


def _require_no_fill(coding: Coding, values: NDArray[Any], missing: Any) -> None:
    """Refuse a value that would be read as missing."""
    if (values == coding.dtype.type(missing)).any():
        raise invalid(
            f"column {coding.name!r} has the value {missing}, which means missing in that variable "
            "(_FillValue): write null, or another value"
        )


def _times(coding: Coding, column: pa.Array) -> NDArray[Any]:
    values = column.to_numpy(zero_copy_only=False).astype("M8[us]")
    encoding = {**coding.attributes, "dtype": coding.dtype}
    stored = _by_xarray(coding, values, encoding)
    if coding.dtype.kind in "iu" and not coding.decode(stored, nan_as_null=True).equals(column):
        raise invalid(
            f"column {coding.name!r} has times that {coding.attributes['units']!r} in "
            f"{coding.dtype} cannot say exactly: truncate them in Spark with date_trunc"
        )
    return stored


def _by_xarray(coding: Coding, values: NDArray[Any], encoding: Any) -> NDArray[Any]:
    variable = xr.Variable(("row",), values, encoding={"dtype": coding.dtype, **encoding})
    try:
        stored = np.asarray(xr.conventions.encode_cf_variable(variable, name=coding.name).values)
    except (ValueError, TypeError, OverflowError) as error:
        raise invalid(f"column {coding.name!r} cannot be encoded: {error}") from error
    return stored.astype(coding.dtype, copy=False)


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    if given == wanted:
        return True
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(given) or pa.types.is_date(given))
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(given) and given.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(wanted):
        whole = pa.types.is_decimal(given) and given.scale == 0
        return bool(pa.types.is_integer(given) or whole)
    if pa.types.is_floating(wanted):
        if pa.types.is_floating(given):
            return bool(given.bit_width <= wanted.bit_width)
        # So many bits of an integer a float keeps exactly.
        return bool(pa.types.is_integer(given) and given.bit_width <= wanted.bit_width // 2)
    return False
