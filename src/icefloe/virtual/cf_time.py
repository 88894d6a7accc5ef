"""CF time units: parsing and exact conversion of times such as ``hours since 2020-01-01``.

The files of an archive often have different reference times, such as the first day of each file.
Integers are converted with exact integer arithmetic, in all CF calendars: a conversion only needs
the number of days between two reference times. Pure, no I/O.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_NANOSECONDS: Final = {
    "nanoseconds": 1,
    "microseconds": 1_000,
    "milliseconds": 1_000_000,
    "seconds": 1_000_000_000,
    "minutes": 60 * 1_000_000_000,
    "hours": 3600 * 1_000_000_000,
    "days": 86400 * 1_000_000_000,
}
_ALIASES: Final = {
    **{name: name for name in _NANOSECONDS},
    **{name.removesuffix("s"): name for name in _NANOSECONDS},
    "d": "days",
    **dict.fromkeys(("h", "hr", "hrs"), "hours"),
    **dict.fromkeys(("min", "mins"), "minutes"),
    **dict.fromkeys(("s", "sec", "secs"), "seconds"),
    **dict.fromkeys(("ms", "msec", "msecs", "millisec", "millisecs"), "milliseconds"),
    **dict.fromkeys(("us", "microsec", "microsecs"), "microseconds"),
    **dict.fromkeys(("ns", "nanosec", "nanosecs"), "nanoseconds"),
}
_CALENDAR_NAMES = ("standard", "proleptic_gregorian", "julian", "noleap", "all_leap", "360_day")
_CALENDAR_ALIASES = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
_CALENDARS: Final = {name: name for name in _CALENDAR_NAMES} | _CALENDAR_ALIASES
_UNITS: Final = re.compile(r"\s*(?P<unit>[a-z]+)\s+since\s+(?P<reference>.+?)\s*", re.IGNORECASE)
_REFERENCE: Final = re.compile(
    r"(?P<year>-?\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T\s]+(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?:Z|UTC|GMT|(?P<sign>[+-])(?P<zone_hour>\d{1,2}):?(?P<zone_minute>\d{2})?)?",
    re.IGNORECASE,
)
_MONTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """Units of a time coordinate, with the canonical names of unit and calendar.

    ``reference`` is the reference time as text, ``epoch_ns`` the same time in nanoseconds since an
    arbitrary day, which is fixed for each calendar. ``missing_values`` mark missing times.
    """

    unit: str
    reference: str
    calendar: str
    epoch_ns: int
    missing_values: tuple[float, ...] = ()

    @property
    def step_ns(self) -> int:
        """Length of one unit in nanoseconds."""
        return _NANOSECONDS[self.unit]

    @property
    def text(self) -> str:
        """The ``units`` attribute."""
        return f"{self.unit} since {self.reference}"


def parse_time_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Parse the units of a time coordinate; None if they are not valid CF time units."""
    units, calendar = attributes.get("units"), attributes.get("calendar", "standard")
    if not isinstance(units, str) or not isinstance(calendar, str):
        return None
    match = _UNITS.fullmatch(units)
    unit = _ALIASES.get(match["unit"].lower()) if match else None
    calendar = _CALENDARS.get(calendar.lower())
    reference = _REFERENCE.fullmatch(match["reference"]) if match else None
    if match is None or unit is None or calendar is None or reference is None:
        return None
    epoch_ns = _compute_epoch_ns(reference, calendar)
    if epoch_ns is None:
        return None
    missing_values = tuple(_parse_missing_values(attributes))
    return TimeUnits(unit, match["reference"], calendar, epoch_ns, missing_values)


def format_time(value: float, units: TimeUnits) -> str:
    """Format a time for messages: as a date and time in common calendars, or with its units."""
    total_ns = round(value * units.step_ns) + units.epoch_ns
    if units.calendar not in {"standard", "proleptic_gregorian"} or total_ns < _REFORM_NS:
        return f"{value} {units.text}"
    days = _count_days(1970, 1, 1, units.calendar)
    time = np.datetime64(round(total_ns / 10**9) - days * 86400, "s")
    return str(time).replace("T", " ").removesuffix(" 00:00:00")


def convert_times(values: NDArray[Any], units: TimeUnits, target: TimeUnits) -> NDArray[Any] | None:
    """Convert times to other units; missing values do not change.

    Returns None if integers are not exact, a time would become missing, or calendars differ.
    """
    is_missing = np.isin(values, units.missing_values)
    times = values[~is_missing]
    if not _are_calendars_compatible(times, units, target):
        return None
    converted = _convert(times, units, target)
    if converted is None or np.isin(converted, units.missing_values).any():
        return None
    if values.dtype.kind == "u" and (values[is_missing] > np.iinfo(np.int64).max).any():
        return None  # converted integers are signed
    result = values.astype(converted.dtype)
    result[~is_missing] = converted
    return result


def format_coordinate(value: Any, attributes: Mapping[str, Any]) -> str:
    """Format a value of a coordinate for a message: a time as its date, others as they are."""
    number = value.item() if isinstance(value, np.generic) else value
    units = parse_time_units(attributes)
    if units is None or not isinstance(number, int | float) or not math.isfinite(number):
        return str(number)
    days, time_ns = divmod(round(number * units.step_ns) + units.epoch_ns, _NANOSECONDS["days"])
    day = _format_day(days, units.calendar)
    if day is None:
        return f"{number} {units.text}"
    seconds, fraction_ns = divmod(time_ns, 1_000_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction_ns:
        text += f".{fraction_ns:09}".rstrip("0")
    return f"{day} {text}" if time_ns else day


def _convert(values: NDArray[Any], units: TimeUnits, target: TimeUnits) -> NDArray[Any] | None:
    offset_ns = units.epoch_ns - target.epoch_ns
    if values.dtype.kind == "f":
        if units.step_ns == target.step_ns and not offset_ns:
            return values
        return values * (units.step_ns / target.step_ns) + offset_ns / target.step_ns
    common = math.gcd(units.step_ns, offset_ns, target.step_ns)
    step, offset, divisor = (ns // common for ns in (units.step_ns, offset_ns, target.step_ns))
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    # Uses Python integers if intermediate results could overflow 64 bits.
    integers = values.astype(object if largest * step + abs(offset) >= 2**62 else np.int64)
    total = integers * step + offset
    if (total % divisor != 0).any():
        return None
    quotient = total // divisor
    if quotient.dtype == object and not all(-(2**63) <= number < 2**63 for number in quotient.flat):
        return None
    return np.asarray(quotient, np.int64)


def reconcile_units(
    parts: Sequence[tuple[NDArray[Any], TimeUnits]],
) -> tuple[TimeUnits, list[NDArray[Any]]] | None:
    """Convert the times of several files to the units of the first, or to the next finer units.

    Returns None if calendars differ, or no units are exact.
    """
    first = parts[0][1]
    finer = [name for name, step in _NANOSECONDS.items() if step < first.step_ns]
    for unit in [first.unit, *reversed(finer)]:
        target = replace(first, unit=unit)
        converted = [convert_times(values, units, target) for values, units in parts]
        exact = [values for values in converted if values is not None]
        if len(exact) == len(parts):
            return target, exact
    return None


def _are_calendars_compatible(values: NDArray[Any], units: TimeUnits, target: TimeUnits) -> bool:
    if units.calendar == target.calendar:
        return True
    if {units.calendar, target.calendar} != {"standard", "proleptic_gregorian"}:
        return False
    # These two are equal after the reform of 1582, and xarray may write one for the other.
    earliest = float(values.min(initial=0)) * units.step_ns + units.epoch_ns
    return earliest >= _REFORM_NS and target.epoch_ns >= _REFORM_NS


def _parse_missing_values(attributes: Mapping[str, Any]) -> Iterator[float]:
    for name in ("_FillValue", "missing_value"):
        value = attributes.get(name)
        if isinstance(value, int | float):
            yield value
        elif isinstance(value, str):
            # Floating-point numbers are little-endian doubles in base 64, as in xarray.
            with suppress(binascii.Error, struct.error):
                yield struct.unpack("<d", base64.b64decode(value))[0]


def _compute_epoch_ns(match: re.Match[str], calendar: str) -> int | None:
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    seconds = int(match["hour"] or 0) * 3600 + int(match["minute"] or 0) * 60
    integer, _, fraction = (match["second"] or "0").partition(".")
    seconds += int(integer)
    if match["sign"]:
        zone = int(match["zone_hour"]) * 3600 + int(match["zone_minute"] or 0) * 60
        seconds -= zone if match["sign"] == "+" else -zone
    nanoseconds = int(fraction[:9].ljust(9, "0")) if fraction else 0
    days = _count_days(year, month, day, calendar)
    return (days * 86400 + seconds) * 1_000_000_000 + nanoseconds


def _count_days(year: int, month: int, day: int, calendar: str) -> int:
    """Return the number of days since an arbitrary day, which is fixed for each calendar."""
    if calendar == "360_day":
        return year * 360 + (month - 1) * 30 + day
    if calendar in {"noleap", "all_leap"}:
        leap = calendar == "all_leap"
        before = sum(_MONTHS[: month - 1]) + (leap and month > 2)
        return year * (365 + leap) + before + day
    # Julian day numbers count the days of both the Julian and the Gregorian calendar.
    shifted = (14 - month) // 12
    years, months = year + 4800 - shifted, month + 12 * shifted - 3
    julian = day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083
    gregorian = julian - years // 100 + years // 400 + 38
    if calendar == "proleptic_gregorian":
        return gregorian
    is_before_reform = (year, month, day) < (1582, 10, 15)
    return julian if calendar == "julian" or is_before_reform else gregorian


def _format_day(days: int, calendar: str) -> str | None:
    """Return the date of a result of `_count_days`; None if Python's calendar does not have it."""
    if calendar == "360_day":
        year, rest = divmod(days - 1, 360)
        return f"{year:04}-{rest // 30 + 1:02}-{rest % 30 + 1:02}"
    if calendar in {"noleap", "all_leap"}:
        leap = calendar == "all_leap"
        year, rest = divmod(days - 1, 365 + leap)
        lengths = [length + (leap and length == 28) for length in _MONTHS]
        month = next(month for month in range(12) if rest < sum(lengths[: month + 1]))
        return f"{year:04}-{month + 1:02}-{rest - sum(lengths[:month]) + 1:02}"
    ordinal = days - _count_days(1, 1, 1, "proleptic_gregorian") + 1
    is_gregorian = calendar == "proleptic_gregorian" or (
        calendar == "standard" and days >= _count_days(1582, 10, 15, calendar)
    )
    if not is_gregorian or not 1 <= ordinal <= date.max.toordinal():
        return None
    return date.fromordinal(ordinal).isoformat()


_REFORM_NS: Final = _count_days(1582, 10, 15, "standard") * _NANOSECONDS["days"]
