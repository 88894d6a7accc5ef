"""Values as the CF conventions mean them, as Arrow arrays of the types that Spark takes.

Scales, offsets, fill values and times are decoded by xarray, a block at a time, so that a row says
what ``xarray.open_zarr`` says, with these differences:

- Missing is null. Integers with a fill value stay integers, where xarray makes floats of them.
- Times are ``timestamp_ntz``, to the microsecond: CF times know no time zone, and the time zone of
  a Spark session must not move them. Calendars that Spark has no dates for, such as ``noleap`` and
  ``360_day``, become text like ``2001-02-30T00:00:00``, which sorts as the times do.
- Types that Spark does not have are widened: unsigned integers to the next signed one, 64-bit ones
  to ``decimal(20, 0)``, half-precision floats to single precision.
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

from icefloe.spark.reading.read_options import invalid_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_MEANINGFUL: Final = frozenset(
    {"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "units", "dtype"}
)
_CODED: Final = frozenset({"scale_factor", "add_offset", "_Unsigned"})
_FILLS: Final = ("_FillValue", "missing_value")
_OF_SPARK: Final = frozenset({"standard", "gregorian", "proleptic_gregorian"})
_MICROSECONDS: Final = pa.timestamp("us")
_WIDENED: Final = {
    "u1": pa.int16(),
    "u2": pa.int32(),
    "u4": pa.int64(),
    "u8": pa.decimal128(20, 0),
    "f2": pa.float32(),
}


@dataclass(frozen=True, slots=True)
class Coding:
    """How the stored values of one variable become a column.

    Parameters
    ----------
    name
        The variable, for messages.
    dtype
        As it is stored.
    attributes
        Those that say what the values mean.
    type
        The type of the column.
    """

    name: str
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]
    type: pa.DataType

    @classmethod
    def of(cls, name: str, dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> Coding:
        """Read the attributes of a variable.

        Raises
        ------
        InvalidInputError
            If they contradict each other, or Spark has no type for the values.
        """
        meaningful = {key: attributes[key] for key in _MEANINGFUL & attributes.keys()}
        if "_FillValue" in meaningful:
            meaningful["_FillValue"] = _decode_fill(meaningful["_FillValue"], dtype)
        if _is_time(dtype, meaningful):
            meaningful["calendar"] = attributes.get("calendar", "standard")
        elif meaningful.get("dtype") != "bool" and not _is_duration(meaningful):
            # Of every other variable they say nothing that a column could show.
            meaningful.pop("units", None)
            meaningful.pop("dtype", None)
        coding = cls(name, dtype, meaningful, pa.null())
        return cls(name, dtype, meaningful, coding._find_type())

    def decode(self, stored: NDArray[Any], *, nan_as_null: bool) -> pa.Array:
        """Make a column of stored values, in the order in which they lie in memory."""
        flat = np.ascontiguousarray(stored).reshape(-1)
        if self._keeps_integers:
            return self._make_array(flat, self._is_missing(flat))
        if "calendar" in self.attributes and (missing := self._is_missing(flat)).any():
            # Without them: cftime makes a time of NaN, and xarray fails where there is no other.
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
                return pa.array([self._time_of(one) for one in values], self.type)
            case "O" if self.is_calendar_text:
                return pa.array([one.isoformat() for one in values], self.type)
            case "O" | "T" | "U" | "S":
                return pa.array(values.astype(object), self.type, from_pandas=True)
            case "b":
                return pa.array(values, self.type)
            case _:
                return self._make_array(values, None)

    @property
    def fills(self) -> NDArray[Any]:
        """The stored values that say that nothing is there."""
        given = [np.ravel(self.attributes[name]) for name in _FILLS if name in self.attributes]
        return np.concatenate([np.empty(0, self.dtype), *(one.astype(self.dtype) for one in given)])

    def _is_missing(self, flat: NDArray[Any]) -> NDArray[np.bool_]:
        """Say where nothing is stored."""
        found = np.isin(flat, self.fills)
        return found | np.isnan(flat) if self.dtype.kind == "f" else found

    @property
    def _keeps_integers(self) -> bool:
        """Whether these are integers some of which mean that nothing is there."""
        return (
            self.dtype.kind in "iu"
            and any(name in self.attributes for name in _FILLS)
            and not self.attributes.keys() & (_CODED | {"units", "dtype"})
        )

    @property
    def is_calendar_text(self) -> bool:
        """Whether these are times of a calendar that Spark has no dates for."""
        return self.attributes.get("calendar", "standard").lower() not in _OF_SPARK

    def _decode_cf(self, flat: NDArray[Any]) -> NDArray[Any]:
        try:
            with warnings.catch_warnings():
                # It warns of times that it has as objects, which are made columns all the same.
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
            raise invalid_input(
                f"variable {self.name!r} cannot be decoded: {error}; its attributes are "
                f"{dict(self.attributes)}"
            ) from error

    def _find_type(self) -> pa.DataType:
        if "calendar" in self.attributes:
            # By its calendar, not by an example: the values decide how xarray decodes them.
            return pa.string() if self.is_calendar_text else _MICROSECONDS
        dtype = self.dtype
        if not self._keeps_integers and self.attributes and dtype.kind in "biuf":
            dtype = self._decode_cf(np.zeros(1, dtype)).dtype
        return self._arrow_type(dtype)

    def _arrow_type(self, dtype: np.dtype[Any]) -> pa.DataType:
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
                raise invalid_input(
                    f"variable {self.name!r} has the type {dtype}, which no column of Spark can "
                    "hold: choose others with the option 'variables', or layout='chunks'"
                )

    def _make_array(self, values: NDArray[Any], missing: NDArray[np.bool_] | None) -> pa.Array:
        """Make an array of fixed-width values, without copying those that fit."""
        wanted = self.type
        if pa.types.is_decimal(wanted):
            return pa.array(values.astype("=u8"), pa.uint64(), mask=missing).cast(wanted)
        if not pa.types.is_temporal(wanted):
            values = values.astype(wanted.to_pandas_dtype(), copy=False)
        validity = None
        if missing is not None and missing.any():
            validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        return pa.Array.from_buffers(wanted, len(values), [validity, pa.py_buffer(values)])

    def _time_of(self, time: Any) -> datetime:
        """Make a time of one that xarray has as an object: in years that its own cannot name."""
        try:
            return datetime(  # noqa: DTZ001 - CF times have none
                time.year,
                time.month,
                time.day,
                time.hour,
                time.minute,
                time.second,
                time.microsecond,
            )
        except ValueError as error:
            raise invalid_input(
                f"variable {self.name!r} has the time {time.isoformat()}, which Spark's calendar "
                "does not have"
            ) from error


def _is_time(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> bool:
    units = attributes.get("units")
    return dtype.kind in "iuf" and isinstance(units, str) and " since " in units


def _is_duration(attributes: Mapping[str, Any]) -> bool:
    return str(attributes.get("dtype", "")).startswith("timedelta64")


def _decode_fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Read a fill value as xarray writes it to Zarr: floats as the base 64 of their bytes."""
    if dtype.kind == "f" and isinstance(value, str):
        try:
            return struct.unpack("<d", base64.standard_b64decode(value))[0]
        except (ValueError, struct.error):
            return float(value)  # "NaN", as some write it
    if dtype.kind == "S" and isinstance(value, str):
        return base64.standard_b64decode(value)
    return value
