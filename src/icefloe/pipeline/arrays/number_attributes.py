"""Attributes that hold numbers, as files and Zarr's conventions write them. Pure, no I/O."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MISSING: Final = ("_FillValue", "missing_value")
"""Attributes that name numbers which stand for no value."""


def read_numbers(value: Any) -> NDArray[Any]:
    """Read an attribute as numbers; what is none, some people write texts there, counts as none.

    Zarr's convention for a float's missing value is its bytes in base 64.
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
    """Write the missing value of floats."""
    return base64.b64encode(struct.pack("<d", value)).decode()


def read_missing_numbers(
    attributes: dict[str, Any], stored: np.dtype[Any], packed: np.dtype[Any]
) -> list[Any]:
    """Return the numbers that stand for no value, as they are read.

    Parameters
    ----------
    stored, packed
        The data types that numbers are stored and read as; integers may differ in their sign.
    """
    found: list[Any] = []
    for name in MISSING:
        for number in read_numbers(attributes.get(name)):
            if stored.kind == "f":
                found.append(number.astype(stored).item())  # rounded, as the data are
            elif _fits(number, stored):
                found.append(number.astype(stored).astype(packed).item())
            elif _fits(number, packed):
                found.append(number.astype(packed).item())
            # Another one is in no data of this type, and must not become one that is.
    return list(dict.fromkeys(found))


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return (
        bool(np.isfinite(number)) and limits.min <= number <= limits.max and number == int(number)
    )
