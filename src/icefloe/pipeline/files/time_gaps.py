"""Finds the times that are missing between the steps of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.report import format_count
from icefloe.virtual.cf_time import format_time, parse_time_units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.virtual.arrays import LoadedArray

_TOLERANCE: Final = 0.15
"""Relative difference of equal intervals: months have 28 to 31 days."""

_MAX_NAMED: Final = 20
"""Maximum number of times in a message."""


def describe_gaps(coordinate: LoadedArray, name: str, num_new: int) -> str | None:
    """Describe the times that are missing between the last steps of a coordinate.

    None if nothing is missing before the last ``num_new`` steps, or if the coordinate has no CF
    time units or no regular interval.
    """
    units = parse_time_units(coordinate.attributes)
    if units is None or coordinate.values.dtype.kind not in "iuf":
        return None
    missing = [*_find_missing(coordinate.values, num_new)]
    if not missing:
        return None
    count = sum(len(times) for times in missing)
    verb = "is" if count == 1 else "are"
    named: list[str] = []
    for times in missing:
        named += (format_time(time, units) for time in times[: _MAX_NAMED - len(named)])
    more = ", …" if count > len(named) else ""
    return f"{name}: {format_count(count, 'step')} {verb} missing: {', '.join(named)}{more}"


def _find_missing(values: NDArray[Any], num_new: int) -> Iterator[NDArray[Any]]:
    """Yield the missing values of each gap."""
    differences = np.diff(values.astype(np.int64 if values.dtype.kind in "iu" else values.dtype))
    if len(differences) < 2 or not np.isfinite(differences).all():
        return
    intervals, counts = np.unique(np.abs(differences), return_counts=True)
    interval = intervals[np.argmax(counts)]  # the shortest, if several are equally frequent
    is_regular = np.abs(np.abs(differences) - interval) <= _TOLERANCE * interval
    if not interval or is_regular.sum() * 2 < len(differences):
        return
    for index in range(max(0, len(differences) - num_new), len(differences)):
        num_missing = round(float(abs(differences[index]) / interval)) - 1
        if num_missing > 0:
            step = np.sign(differences[index]) * interval
            yield values[index] + step * np.arange(1, num_missing + 1)
