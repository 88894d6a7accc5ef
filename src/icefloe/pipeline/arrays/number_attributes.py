"""Decodes and encodes numeric attributes, in the conventions of CF and xarray. Pure."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MISSING_VALUE_ATTRIBUTES: Final = ("_FillValue", "missing_value")
"""Attributes that hold missing values."""


def read_numbers(value: Any) -> NDArray[Any]:
    """Return an attribute as numbers; empty if it is not numeric.

    xarray encodes the missing value of floats in base64.
    """
    if isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
            return np.array(struct.unpack("<d", data))
        except (ValueError, struct.error):
            pass
    try:
        numbers = np.zeros(0) if value is None else np.atleast_1d(value)
        return numbers if numbers.dtype.kind in "biuf" else numbers.astype(np.float64)
    except (TypeError, ValueError):
        return np.zeros(0)


def encode_float_fill(value: float) -> str:
    """Encode the missing value of floats as xarray does."""
    return base64.b64encode(struct.pack("<d", value)).decode()


def read_missing_numbers(
    attributes: Mapping[str, Any], stored: np.dtype[Any], packed: np.dtype[Any]
) -> list[Any]:
    """Return the missing values as numbers of type ``packed``.

    Data is stored as ``stored`` and read as ``packed``; integers may differ in signedness.
    """
    missing: list[Any] = []
    for name in MISSING_VALUE_ATTRIBUTES:
        for number in read_numbers(attributes.get(name)):
            if stored.kind == "f":
                missing.append(number.astype(stored).item())  # rounded like the data
            elif _is_representable(number, stored):
                missing.append(number.astype(stored).astype(packed).item())
            elif _is_representable(number, packed):
                missing.append(number.astype(packed).item())
            # Other numbers cannot occur in the data; casting would turn them into numbers that can.
    return list(dict.fromkeys(missing))


def _is_representable(number: Any, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return (
        bool(np.isfinite(number)) and limits.min <= number <= limits.max and number == int(number)
    )
