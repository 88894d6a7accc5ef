"""Numbers that stand for values, as CF files pack them: ``scale_factor``, ``add_offset``. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.pipeline.array_metadata import ArrayDocument

_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_EXACT_BITS: Final = 16
"""Integers of up to so many bits are exact in a float32."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How packed numbers become values.

    Parameters
    ----------
    scale, offset
        A value is its number times ``scale``, plus ``offset``.
    missing
        Numbers that stand for no value, which becomes NaN.
    packed
        The data type that numbers are to be read as: NetCDF's older formats store unsigned ones as
        signed ones, and say so.
    dtype
        The data type of values.
    """

    scale: float
    offset: float
    missing: tuple[float, ...]
    packed: str
    dtype: str

    def values(self, packed: NDArray[Any]) -> NDArray[Any]:
        """Unpack; in double precision, whatever the result is stored as."""
        numbers = np.asarray(packed).astype(self.packed, copy=False)
        found = numbers.astype(np.float64)
        found *= self.scale
        found += self.offset
        for one in self.missing:
            found[numbers == one] = np.nan
        return found.astype(self.dtype)


def unpacked(array: ArrayDocument, dtype: Any = None) -> tuple[ArrayDocument, Packing | None]:
    """Return an array as it is when its values are unpacked, and how; None where nothing is packed.

    Raises
    ------
    InvalidInputError
        If values cannot have the data type that is asked for.
    """
    attributes = array.document.get("attributes", {})
    is_packed = "scale_factor" in attributes or "add_offset" in attributes
    if not is_packed or array.dtype.kind not in "iuf":
        return array, None
    wanted = np.dtype(dtype or ("f4" if array.dtype.itemsize * 8 <= _EXACT_BITS else "f8"))
    if wanted.kind != "f":
        raise InvalidInputError(
            f"{array.path}: unpacked values are floating point, not {wanted}: take float32 or "
            "float64",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    stored = array.dtype.newbyteorder("=")
    packed = _read_as(stored, attributes.get("_Unsigned"))
    missing = [
        number
        for name in ("_FillValue", "missing_value")
        # Written as the numbers are stored, so to be read as they are.
        for number in _numbers(attributes.get(name)).astype(stored).astype(packed).tolist()
    ]
    packing = Packing(
        float(_numbers(attributes.get("scale_factor", 1.0))[0]),
        float(_numbers(attributes.get("add_offset", 0.0))[0]),
        tuple(dict.fromkeys(missing)),
        packed.str,
        wanted.str,
    )
    kept = {name: value for name, value in attributes.items() if name not in _PACKING}
    document = {
        **array.document,
        "attributes": kept,
        "data_type": wanted.name,
        "fill_value": "NaN",
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
        ],
    }
    return replace(array, document=document), packing


def _read_as(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    says = str(unsigned).lower()
    if stored.kind == "i" and says == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and says == "false":
        return np.dtype(f"i{stored.itemsize}")
    return stored


def _numbers(value: Any) -> NDArray[Any]:
    """Read an attribute; Zarr's convention for a float's missing value is its bytes in base 64."""
    if value is None:
        return np.zeros(0)
    if isinstance(value, str):
        return np.frombuffer(base64.standard_b64decode(value), np.dtype("<f8"))
    return np.atleast_1d(value)
