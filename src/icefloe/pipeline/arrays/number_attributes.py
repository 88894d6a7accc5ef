"""Numeric attributes, as files and Zarr conventions encode them. Pure."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MISSING: Final = ("_FillValue", "missing_value")
"""Attributes that hold missing values."""


def read_numbers(value: Any) -> NDArray[Any]:
    """Return an attribute as numbers; empty if it holds none.

    Zarr's convention for the missing value of floats is base64 of its bytes.
    """
    if isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
            return np.array(struct.unpack("<d", data))
        except (ValueError, struct.error):
            pass
    try:
        found = np.zeros(0) if value is None else np.atleast_1d(value)
        return found if found.dtype.kind in "biuf" else found.astype(np.float64)
    except (TypeError, ValueError):
        return np.zeros(0)


def encode_float_fill(value: float) -> str:
    """Encode the missing value of floats."""
    return base64.b64encode(struct.pack("<d", value)).decode()


def read_missing_numbers(
    attributes: Mapping[str, Any], stored: np.dtype[Any], packed: np.dtype[Any]
) -> list[Any]:
    """Return the missing values, converted to the type they are read as.

    Numbers are stored and read as ``stored`` and ``packed``; integers may differ in signedness.
    """
    found: list[Any] = []
    for name in MISSING:
        for number in read_numbers(attributes.get(name)):
            if stored.kind == "f":
                found.append(number.astype(stored).item())  # rounded like the data
            elif _fits(number, stored):
                found.append(number.astype(stored).astype(packed).item())
            elif _fits(number, packed):
                found.append(number.astype(packed).item())
            # Others cannot occur in the data, and must not be cast to a number that can.
    return list(dict.fromkeys(found))


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return (
        bool(np.isfinite(number)) and limits.min <= number <= limits.max and number == int(number)
    )
