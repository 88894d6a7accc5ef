"""CF time units: parsing and exact conversion of times such as ``hours since 2020-01-01``.

Pure, no I/O. Files of one archive often count from different references, such as their own first
day. Conversion uses integer arithmetic, which is exact where floats or dates are not, and supports
all CF calendars: only the number of days between two references matters.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

    ``reference`` is the text of the attribute, ``epoch_ns`` the same time in nanoseconds since an
    arbitrary day, the same for each calendar.
    """

    unit: str
    reference: str
    calendar: str
    epoch_ns: int

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
    found = _UNITS.fullmatch(units)
    unit = _ALIASES.get(found["unit"].lower()) if found else None
    kind = _CALENDARS.get(calendar.lower())
    reference = _REFERENCE.fullmatch(found["reference"]) if found else None
    if found is None or unit is None or kind is None or reference is None:
        return None
    epoch = _compute_epoch_ns(reference, kind)
    return None if epoch is None else TimeUnits(unit, found["reference"], kind, epoch)


def convert_times(values: NDArray[Any], given: TimeUnits, target: TimeUnits) -> NDArray[Any] | None:
    """Convert times to other units; None if integers are not exact, or calendars differ."""
    if not _are_calendars_compatible(values, given, target):
        return None
    offset_ns = given.epoch_ns - target.epoch_ns
    if values.dtype.kind == "f":
        if given.step_ns == target.step_ns and not offset_ns:
            return values
        return values * (given.step_ns / target.step_ns) + offset_ns / target.step_ns
    shared = math.gcd(given.step_ns, offset_ns, target.step_ns)
    step, offset, divisor = (ns // shared for ns in (given.step_ns, offset_ns, target.step_ns))
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    # Python integers where intermediate results may overflow 64 bits.
    exact = values.astype(object if largest * step + abs(offset) >= 2**62 else np.int64)
    total = exact * step + offset
    if (total % divisor != 0).any():
        return None
    quotient = total // divisor
    if quotient.dtype == object and not all(-(2**63) <= number < 2**63 for number in quotient.flat):
        return None
    return np.asarray(quotient, np.int64)


def reconcile_units(
    parts: Sequence[tuple[NDArray[Any], TimeUnits]],
) -> tuple[TimeUnits, list[NDArray[Any]]] | None:
    """Convert the times of several files to the units of the first, or to the next finer ones.

    Returns None if calendars differ, or no unit is exact.
    """
    first = parts[0][1]
    finer = [name for name, step in _NANOSECONDS.items() if step < first.step_ns]
    for unit in [first.unit, *reversed(finer)]:
        target = TimeUnits(unit, first.reference, first.calendar, first.epoch_ns)
        converted = [convert_times(values, units, target) for values, units in parts]
        exact = [values for values in converted if values is not None]
        if len(exact) == len(parts):
            return target, exact
    return None


def _are_calendars_compatible(values: NDArray[Any], given: TimeUnits, target: TimeUnits) -> bool:
    if given.calendar == target.calendar:
        return True
    if {given.calendar, target.calendar} != {"standard", "proleptic_gregorian"}:
        return False
    # These two are equal since the reform of 1582, and xarray writes one where it read the other.
    earliest = float(values.min(initial=0)) * given.step_ns + given.epoch_ns
    return earliest >= _REFORM_NS and target.epoch_ns >= _REFORM_NS


def _compute_epoch_ns(found: re.Match[str], calendar: str) -> int | None:
    year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    seconds = int(found["hour"] or 0) * 3600 + int(found["minute"] or 0) * 60
    whole, _, fraction = (found["second"] or "0").partition(".")
    seconds += int(whole)
    if found["sign"]:
        zone = int(found["zone_hour"]) * 3600 + int(found["zone_minute"] or 0) * 60
        seconds -= zone if found["sign"] == "+" else -zone
    nanoseconds = int(fraction[:9].ljust(9, "0")) if fraction else 0
    days = _count_days(year, month, day, calendar)
    return (days * 86400 + seconds) * 1_000_000_000 + nanoseconds


def _count_days(year: int, month: int, day: int, calendar: str) -> int:
    """Return the days since an arbitrary day of the calendar."""
    if calendar == "360_day":
        return year * 360 + (month - 1) * 30 + day
    if calendar in {"noleap", "all_leap"}:
        leap = calendar == "all_leap"
        before = sum(_MONTHS[: month - 1]) + (leap and month > 2)
        return year * (365 + leap) + before + day
    # Julian day number: one scale for the Julian and Gregorian calendars.
    shifted = (14 - month) // 12
    years, months = year + 4800 - shifted, month + 12 * shifted - 3
    julian = day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083
    gregorian = julian - years // 100 + years // 400 + 38
    if calendar == "proleptic_gregorian":
        return gregorian
    is_before_reform = (year, month, day) < (1582, 10, 15)
    return julian if calendar == "julian" or is_before_reform else gregorian


_REFORM_NS: Final = _count_days(1582, 10, 15, "standard") * _NANOSECONDS["days"]
