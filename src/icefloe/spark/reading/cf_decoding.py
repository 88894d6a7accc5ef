"""Decoding of variables by CF conventions into Arrow arrays of types that Spark supports.

xarray decodes scales, offsets, fill values and times, so that rows have the values of
``xarray.open_zarr``, with these differences:

- Missing values are null (floats stay NaN if ``nan_as_null`` is false). Integers with a fill value
  stay integers; xarray converts them to floats.
- Times are ``timestamp_ntz`` in microseconds: CF times have no time zone, and the time zone of the
  Spark session must not shift them. Times in calendars that Spark does not support, such as
  ``noleap`` and ``360_day``, become strings like ``2001-02-30T00:00:00``, which sort
  chronologically.
- Types that Spark does not support are widened: unsigned integers to the next larger signed type,
  64-bit unsigned integers to ``decimal(20, 0)``, half-precision floats to single precision.
"""

from __future__ import annotations

import base64
import struct
import warnings
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xarray as xr
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder

from icefloe.spark.option_parsing import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_CODING_ATTRIBUTES: Final = frozenset(
    {"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "units", "dtype"}
)
_SCALING: Final = frozenset({"scale_factor", "add_offset", "_Unsigned"})
_FILLS: Final = ("_FillValue", "missing_value")
_SPARK_CALENDARS: Final = frozenset({"standard", "gregorian", "proleptic_gregorian"})
_MICROSECONDS: Final = pa.timestamp("us")
_UNITS: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond")
_WIDENED: Final = {
    "u1": pa.int16(),
    "u2": pa.int32(),
    "u4": pa.int64(),
    "u8": pa.decimal128(20, 0),
    "f2": pa.float32(),
}


@dataclass(frozen=True, slots=True)
class Coding:
    """Mapping between stored values of type ``dtype`` and column values of type ``type``.

    ``attributes`` are the attributes that define the coding; ``name`` is used in messages.
    """

    name: str
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]
    type: pa.DataType

    @classmethod
    def from_attributes(
        cls, name: str, dtype: np.dtype[Any], attributes: Mapping[str, Any]
    ) -> Coding:
        """Return the coding that the attributes of a variable define.

        Raises if attributes contradict each other, or Spark has no type for the values.
        """
        relevant = {key: attributes[key] for key in _CODING_ATTRIBUTES & attributes.keys()}
        if "_FillValue" in relevant:
            relevant["_FillValue"] = _decode_fill(relevant["_FillValue"], dtype)
        if _is_time(dtype, relevant):
            relevant["calendar"] = attributes.get("calendar", "standard")
        elif relevant.get("dtype") != "bool" and not _is_duration(relevant):
            # ``units`` and ``dtype`` affect only times, durations and booleans.
            relevant.pop("units", None)
            relevant.pop("dtype", None)
        coding = cls(name, dtype, relevant, pa.null())
        return cls(name, dtype, relevant, coding._find_type())

    def decode(self, stored: NDArray[Any], *, nan_as_null: bool) -> pa.Array:
        """Decode stored values to a column, flattened in C order."""
        flat = np.ascontiguousarray(stored).reshape(-1)
        if self._keeps_integers:
            return self._make_array(flat, self._is_missing(flat))
        if "calendar" in self.attributes and (missing := self._is_missing(flat)).any():
            # Decode only present values: cftime decodes NaN as a time, and xarray fails if all
            # values are missing.
            present = self.decode(flat[~missing], nan_as_null=nan_as_null)
            return present.take(pa.array(np.cumsum(~missing) - 1, mask=missing))
        if not len(flat):
            return pa.array([], self.type)
        values = self._decode_cf(flat) if self.attributes else flat
        match values.dtype.kind:
            case "M" | "m":
                missing = np.isnat(values)
                unit = "datetime64[us]" if values.dtype.kind == "M" else "timedelta64[us]"
                return self._make_array(values.astype(unit).view(np.int64), missing)
            case "f" if nan_as_null:
                return self._make_array(values, np.isnan(values))
            case "O" if pa.types.is_timestamp(self.type):
                return pa.array([self._to_datetime(time) for time in values], self.type)
            case "O" if self.has_calendar_text:
                return pa.array([time.isoformat() for time in values], self.type)
            case "O" | "T" | "U" | "S":
                return pa.array(values.astype(object), self.type, from_pandas=True)
            case "b":
                return pa.array(values, self.type)
            case _:
                return self._make_array(values, None)

    @property
    def fills(self) -> NDArray[Any]:
        """Stored values that represent missing values."""
        fills = [np.ravel(self.attributes[name]) for name in _FILLS if name in self.attributes]
        fills = [values.astype(self.dtype) for values in fills]
        return np.concatenate([np.empty(0, self.dtype), *fills])

    def _is_missing(self, flat: NDArray[Any]) -> NDArray[np.bool_]:
        is_fill = np.isin(flat, self.fills)
        return is_fill | np.isnan(flat) if self.dtype.kind == "f" else is_fill

    @property
    def _keeps_integers(self) -> bool:
        """Whether values are integers with a fill value and no other coding."""
        return (
            self.dtype.kind in "iu"
            and any(name in self.attributes for name in _FILLS)
            and not self.attributes.keys() & (_SCALING | {"units", "dtype"})
        )

    @property
    def has_calendar_text(self) -> bool:
        """Whether values are times, as text, of a calendar that Spark does not support."""
        return self.attributes.get("calendar", "standard").lower() not in _SPARK_CALENDARS

    def _decode_cf(self, flat: NDArray[Any]) -> NDArray[Any]:
        try:
            with warnings.catch_warnings():
                # xarray warns about times that it decodes to objects, which are supported here.
                warnings.simplefilter("ignore", xr.SerializationWarning)
                decoded = xr.conventions.decode_cf_variable(
                    self.name,
                    xr.Variable(("row",), flat, dict(self.attributes)),
                    concat_characters=False,
                    decode_times=CFDatetimeCoder(time_unit="us"),
                    decode_timedelta=CFTimedeltaCoder(
                        time_unit="us", decode_via_units=False, decode_via_dtype=True
                    ),
                )
                return np.asarray(decoded.values)
        except (ValueError, TypeError, OverflowError) as error:
            raise input_error(
                f"variable {self.name!r} cannot be decoded: {error}; its attributes are "
                f"{dict(self.attributes)}"
            ) from error

    def _find_type(self) -> pa.DataType:
        if "calendar" in self.attributes:
            # Not from a decoded example: the type of times in xarray depends on their values.
            return pa.string() if self.has_calendar_text else _MICROSECONDS
        dtype = self.dtype
        if not self._keeps_integers and self.attributes and dtype.kind in "biuf":
            dtype = self._decode_cf(np.zeros(1, dtype)).dtype
        return self._to_arrow_type(dtype)

    def _to_arrow_type(self, dtype: np.dtype[Any]) -> pa.DataType:
        match dtype.kind:
            case "b":
                return pa.bool_()
            case "i" | "u" | "f" if dtype.itemsize <= 8:
                code = f"{dtype.kind}{dtype.itemsize}"
                return _WIDENED.get(code) or pa.from_numpy_dtype(dtype.newbyteorder("="))
            case "M":
                return _MICROSECONDS
            case "m":
                return pa.duration("us")
            case "O" | "U" | "T":
                return pa.string()
            case "S":
                return pa.binary()
            case _:
                raise input_error(
                    f"variable {self.name!r} has type {dtype}, which Spark does not support: "
                    "choose other variables with the option 'variables', or use layout='chunks'"
                )

    def _make_array(self, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> pa.Array:
        """Return an array of fixed-width values; zero-copy if no conversion is needed."""
        target = self.type
        if pa.types.is_decimal(target):
            return pa.array(values.astype("=u8"), pa.uint64(), mask=missing).cast(target)
        if not pa.types.is_temporal(target):
            values = values.astype(target.to_pandas_dtype(), copy=False)
        validity = None
        if missing is not None and missing.any():
            validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        return pa.Array.from_buffers(target, len(values), [validity, pa.py_buffer(values)])

    def _to_datetime(self, time: Any) -> datetime:
        """Convert a cftime object.

        xarray decodes to these if a time is before 1582-10-15 in the standard calendar, or out of
        range of datetime64.
        """
        try:
            return datetime(*(getattr(time, unit) for unit in _UNITS))  # noqa: DTZ001 - CF times have none
        except ValueError as error:
            raise input_error(
                f"variable {self.name!r} has the time {time.isoformat()}, which does not exist in "
                "Spark's calendar"
            ) from error


def _is_time(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> bool:
    units = attributes.get("units")
    return dtype.kind in "iuf" and isinstance(units, str) and " since " in units


def _is_duration(attributes: Mapping[str, Any]) -> bool:
    return str(attributes.get("dtype", "")).startswith("timedelta64")


def _decode_fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Decode a fill value that xarray wrote to Zarr: floats and bytes are base64-encoded."""
    if dtype.kind == "f" and isinstance(value, str):
        try:
            return struct.unpack("<d", base64.standard_b64decode(value))[0]
        except (ValueError, struct.error):
            return float(value)  # such as "NaN", from other writers
    if dtype.kind == "S" and isinstance(value, str):
        return base64.standard_b64decode(value)
    return value
