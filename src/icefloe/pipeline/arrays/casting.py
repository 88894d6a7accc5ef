"""Data type conversion that checks every value. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.pipeline.argument_errors import array_error


def cast_values(values: Any, dtype: np.dtype[Any]) -> Any:
    """Convert to another data type; raise `InvalidInputError` if a value does not fit."""
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted.astype(array.dtype), array):
        raise array_error(f"numbers between {array.min()} and {array.max()} do not fit {dtype}")
    # Strings that would be truncated, and times that a coarser unit cannot represent.
    if dtype.kind in "SUmM" and not np.array_equal(
        converted.astype(array.dtype), array, equal_nan=dtype.kind in "mM"
    ):
        raise array_error(f"values of {array.dtype} do not fit {dtype}")
    if dtype.kind in "fc" and not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        raise array_error(f"numbers are too large for {dtype}")
    return converted
