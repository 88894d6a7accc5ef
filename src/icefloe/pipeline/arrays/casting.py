"""Data type conversion that raises if a value does not fit. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.pipeline.argument_errors import invalid_array


def cast_values(values: Any, dtype: np.dtype[Any]) -> Any:
    """Convert to another data type; raise `InvalidInputError` if a value does not fit."""
    found = np.asarray(values)
    if found.dtype == dtype:
        return found
    with np.errstate(over="ignore", invalid="ignore"):
        converted = found.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted.astype(found.dtype), found):
        raise invalid_array(f"numbers between {found.min()} and {found.max()} do not fit {dtype}")
    # Truncated strings, and times that the coarser unit cannot represent.
    if dtype.kind in "SUmM" and not np.array_equal(
        converted.astype(found.dtype), found, equal_nan=dtype.kind in "mM"
    ):
        raise invalid_array(f"values of {found.dtype} do not fit {dtype}")
    if dtype.kind in "fc" and not np.array_equal(np.isfinite(converted), np.isfinite(found)):
        raise invalid_array(f"numbers are too large for {dtype}")
    return converted
