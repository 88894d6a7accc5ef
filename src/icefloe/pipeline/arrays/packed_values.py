"""Numbers that stand for values, as CF files pack them: ``scale_factor``, ``add_offset``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.array_document import CODECS
from icefloe.pipeline.arrays.number_attributes import read_missing_numbers, read_numbers
from icefloe.pipeline.jobs.rechunk import fitting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.pipeline.arrays.array_document import ArrayDocument

_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_ENCODING: Final = ("dtype", "scale_factor", "add_offset", "_FillValue")
_MAX_PACKED_BYTES: Final = 4
"""Larger integers are not exact in a float64, in which values are packed and unpacked."""

_EXACT_BITS: Final = 16
"""Integers of up to so many bits are exact in a float32."""

_FLOAT32_STEPS: Final = 2.0**23
"""So many numbers next to each other stay apart in a float32."""


@dataclass(frozen=True, slots=True)
class ValueDecoder:
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
        return np.asarray(fitting(found, np.dtype(self.dtype)))


@dataclass(frozen=True, slots=True)
class ValueEncoder:
    """How values become packed numbers.

    Parameters
    ----------
    dtype
        The data type of numbers, an integer one.
    scale, offset
        A number is what is nearest to its value less ``offset``, divided by ``scale``.
    missing
        The number that stands for no value, which is NaN.
    """

    dtype: str
    scale: float
    offset: float
    missing: int

    @classmethod
    def of(cls, name: str, spec: Any) -> ValueEncoder:
        """Read what somebody wants for a variable, in the words of xarray's encoding.

        Raises
        ------
        InvalidInputError
            If it is not that.
        """
        if not isinstance(spec, Mapping) or not {"dtype"} <= spec.keys() <= {*_ENCODING}:
            raise _bad(
                name, f"packing says {', '.join(_ENCODING)}, of which dtype must be there: {spec!r}"
            )
        try:
            dtype = np.dtype(spec["dtype"])
            scale, offset = float(spec.get("scale_factor", 1)), float(spec.get("add_offset", 0))
        except (TypeError, ValueError) as error:
            raise _bad(name, f"{dict(spec)} says no packing: {error}") from error
        if dtype.kind not in "iu" or dtype.itemsize > _MAX_PACKED_BYTES:
            raise _bad(name, f"packed numbers are integers of up to 32 bits, not {dtype}")
        if not (np.isfinite([scale, offset]).all() and scale):
            raise _bad(name, f"scale_factor {scale} and add_offset {offset} give no numbers")
        limits = np.iinfo(dtype.str)
        missing = spec.get("_FillValue", limits.min if dtype.kind == "i" else limits.max)
        if isinstance(missing, bool) or missing not in range(limits.min, limits.max + 1):
            raise _bad(name, f"_FillValue {missing!r} is no number of {dtype}")
        return cls(dtype.name, scale, offset, int(missing))

    @classmethod
    def like(cls, array: ArrayDocument) -> ValueEncoder:
        """Read how the numbers of an array that was packed here stand for values."""
        attributes = array.document["attributes"]
        named = {name: attributes[name] for name in _ENCODING if name in attributes}
        return cls.of(array.path, {**named, "dtype": array.dtype.name})

    def numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Pack.

        Raises
        ------
        InvalidInputError
            If a value has no number, or one that stands for none.
        """
        found = (np.asarray(values, np.float64) - self.offset) / self.scale
        is_missing = np.isnan(found)
        found = np.where(is_missing, self.missing, np.rint(found))
        limits = np.iinfo(np.dtype(self.dtype))
        if found.size and not (limits.min <= found.min() and found.max() <= limits.max):
            held = sorted(n * self.scale + self.offset for n in (limits.min, limits.max))
            raise InvalidInputError(
                f"it holds values between {np.nanmin(values)} and {np.nanmax(values)}, and {self} "
                f"holds {held[0]:g} to {held[1]:g}: take another scale_factor or add_offset",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        if ((found == self.missing) & ~is_missing).any():
            raise InvalidInputError(
                f"it holds values near {self.missing * self.scale + self.offset:g}, which {self} "
                f"stores as {self.missing}, the _FillValue: take another one",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return found.astype(self.dtype)

    def applied(self, array: ArrayDocument) -> ArrayDocument:
        """Return an array of unpacked values as it is when they are packed."""
        attributes = {
            **array.document["attributes"],
            "scale_factor": self.scale,
            "add_offset": self.offset,
            "_FillValue": self.missing,
        }
        return replace(
            array,
            document={
                **array.document,
                "attributes": attributes,
                "data_type": self.dtype,
                "fill_value": self.missing,
            },
        )

    def __str__(self) -> str:
        return f"{self.dtype} with scale_factor {self.scale:g} and add_offset {self.offset:g}"


def _bad(name: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{name}: {problem}", kind=ErrorKind.INVALID_ARRAY_METADATA)


def unpack_array(
    array: ArrayDocument, dtype: Any = None, *, always: bool = False
) -> tuple[ArrayDocument, ValueDecoder | None]:
    """Return an array as it is when its values are unpacked, and how; None where nothing is packed.

    With ``always`` numbers stand for themselves where nothing is said, and missing ones are NaN.

    Raises
    ------
    InvalidInputError
        If values cannot have the data type that is asked for.
    """
    attributes = array.document.get("attributes", {})
    is_packed = "scale_factor" in attributes or "add_offset" in attributes
    if not (is_packed or always) or array.dtype.kind not in "iuf":
        return array, None
    scale, offset = (
        _factor(array, name, usual) for name, usual in (("scale_factor", 1.0), ("add_offset", 0.0))
    )
    wanted = np.dtype(dtype or _smallest(array.dtype, scale, offset))
    if wanted.kind != "f":
        raise InvalidInputError(
            f"{array.path}: unpacked values are floating point, not {wanted}: take float32 or "
            "float64",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    stored = array.dtype.newbyteorder("=")
    packed = _read_as(stored, attributes.get("_Unsigned"))
    missing = tuple(read_missing_numbers(attributes, stored, packed))
    packing = ValueDecoder(scale, offset, missing, packed.str, wanted.str)
    kept = {name: value for name, value in attributes.items() if name not in _PACKING}
    document = {
        **array.document,
        "attributes": kept,
        "data_type": wanted.name,
        "fill_value": "NaN",
        "codecs": list(CODECS),
    }
    return replace(array, document=document), packing


def find_decoder(array: ArrayDocument) -> ValueDecoder | None:
    """Tell how the numbers of an array are read as values, as xarray would: NaN is no value.

    None where they are values: nothing is said of them, or only that NaN is missing.
    """
    attributes = array.document.get("attributes", {})
    is_packed = "scale_factor" in attributes or "add_offset" in attributes
    if array.dtype.kind not in "iuf" or not any(name in attributes for name in _PACKING):
        return None
    is_float = array.dtype.kind == "f"
    wanted = np.float64 if is_packed else array.dtype if is_float else None
    _, packing = unpack_array(array, wanted, always=True)
    if packing is None or is_packed:
        return packing
    if not np.isnan(np.array(packing.missing, np.float64)).all():
        return packing
    is_signed_otherwise = np.dtype(packing.packed) != array.dtype.newbyteorder("=")
    return replace(packing, dtype=packing.packed) if is_signed_otherwise else None


def is_nan(value: Any) -> bool:
    """Whether an attribute says that NaN, and no other number, stands for no value."""
    found = read_numbers(value)
    return bool(len(found)) and bool(np.isnan(found).all())


def _smallest(dtype: np.dtype[Any], scale: float, offset: float) -> str:
    """Return the smallest data type in which unpacked values stay apart."""
    steps = 2.0 ** (8 * dtype.itemsize) + abs(offset / scale if scale else 0.0)
    return "f4" if dtype.itemsize * 8 <= _EXACT_BITS and steps < _FLOAT32_STEPS else "f8"


def _factor(array: ArrayDocument, name: str, usual: float) -> float:
    value = array.document.get("attributes", {}).get(name, usual)
    found = read_numbers(value)
    if not len(found):
        raise _bad(array.path, f"its attribute {name} = {value!r} is no number")
    return float(found[0])


def _read_as(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    says = str(unsigned).lower()
    if stored.kind == "i" and says == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and says == "false":
        return np.dtype(f"i{stored.itemsize}")
    return stored
