"""CF packing: integers that store values by ``scale_factor`` and ``add_offset``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.argument_errors import invalid_array
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.number_attributes import read_missing_numbers, read_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.errors import InvalidInputError

_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_ENCODING: Final = ("dtype", "scale_factor", "add_offset", "_FillValue")
_MAX_PACKED_BYTES: Final = 4
"""float64, used for the conversion, does not represent larger integers exactly."""

_EXACT_BITS: Final = 16
"""Width of integers that float32 represents exactly."""

_FLOAT32_STEPS: Final = 2.0**23
"""Number of consecutive integers that float32 distinguishes."""


@dataclass(frozen=True, slots=True)
class ValueDecoder:
    """Conversion of packed numbers to values: ``number * scale + offset``, NaN for ``missing``.

    Numbers are read as ``packed``: classic NetCDF stores unsigned integers as signed ones, with the
    attribute ``_Unsigned``. ``dtype`` is the data type of values.
    """

    scale: float
    offset: float
    missing: tuple[float, ...]
    packed: str
    dtype: str

    def decode(self, packed: NDArray[Any]) -> NDArray[Any]:
        """Decode in double precision, then cast."""
        numbers = np.asarray(packed).astype(self.packed, copy=False)
        found = numbers.astype(np.float64)
        found *= self.scale
        found += self.offset
        for number in self.missing:
            found[numbers == number] = np.nan
        return np.asarray(cast_values(found, np.dtype(self.dtype)))


@dataclass(frozen=True, slots=True)
class ValueEncoder:
    """Conversion of values to packed numbers: ``round((value - offset) / scale)``.

    ``dtype`` is the integer data type of numbers, ``missing`` the number that NaN becomes.
    """

    dtype: str
    scale: float
    offset: float
    missing: int

    @classmethod
    def of(cls, name: str, spec: Any) -> ValueEncoder:
        """Parse the encoding of a variable, in xarray's keys; raise `InvalidInputError`."""
        if not isinstance(spec, Mapping) or not {"dtype"} <= spec.keys() <= {*_ENCODING}:
            raise _invalid(
                name, f"packing takes {', '.join(_ENCODING)}, and requires dtype, not {spec!r}"
            )
        try:
            dtype = np.dtype(spec["dtype"])
            scale, offset = float(spec.get("scale_factor", 1)), float(spec.get("add_offset", 0))
        except (TypeError, ValueError) as error:
            raise _invalid(name, f"{dict(spec)} is not a packing: {error}") from error
        if dtype.kind not in "iu" or dtype.itemsize > _MAX_PACKED_BYTES:
            raise _invalid(name, f"packed numbers must be integers of up to 32 bits, not {dtype}")
        if not (np.isfinite([scale, offset]).all() and scale):
            raise _invalid(
                name,
                f"scale_factor {scale} and add_offset {offset} must be finite, and scale not 0",
            )
        limits = np.iinfo(dtype.str)
        missing = spec.get("_FillValue", limits.min if dtype.kind == "i" else limits.max)
        if isinstance(missing, bool) or missing not in range(limits.min, limits.max + 1):
            raise _invalid(name, f"_FillValue {missing!r} is not in the range of {dtype}")
        return cls(dtype.name, scale, offset, int(missing))

    @classmethod
    def like(cls, array: ArrayDocument) -> ValueEncoder:
        """Return the encoder of an array that was packed by this module."""
        attributes = array.document["attributes"]
        named = {name: attributes[name] for name in _ENCODING if name in attributes}
        return cls.of(array.path, {**named, "dtype": array.dtype.name})

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Encode values.

        Raises `InvalidInputError` if one is out of range or would become ``missing``.
        """
        found = (np.asarray(values, np.float64) - self.offset) / self.scale
        is_missing = np.isnan(found)
        found = np.where(is_missing, self.missing, np.rint(found))
        limits = np.iinfo(np.dtype(self.dtype))
        if found.size and not (limits.min <= found.min() and found.max() <= limits.max):
            held = sorted(n * self.scale + self.offset for n in (limits.min, limits.max))
            raise invalid_array(
                f"values range from {np.nanmin(values)} to {np.nanmax(values)}, but {self} "
                f"holds {held[0]:g} to {held[1]:g}: choose another scale_factor or add_offset"
            )
        if ((found == self.missing) & ~is_missing).any():
            raise invalid_array(
                f"values near {self.missing * self.scale + self.offset:g} would be stored "
                f"by {self} as {self.missing}, the _FillValue: choose another one"
            )
        return found.astype(self.dtype)

    def apply_to(self, array: ArrayDocument) -> ArrayDocument:
        """Return the metadata of an array of values after decoder."""
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


def _invalid(name: str, problem: str) -> InvalidInputError:
    return invalid_array(f"{name}: {problem}")


def unpack_array(
    array: ArrayDocument, dtype: Any = None, *, always: bool = False
) -> tuple[ArrayDocument, ValueDecoder | None]:
    """Return the metadata of an array after unpacking, and its decoder; None if it is not packed.

    With ``always``, an array without packing attributes is decoded too, and missing values become
    NaN. Raises `InvalidInputError` if values cannot have ``dtype``.
    """
    attributes = array.attributes
    if not (array.is_packed or always) or array.dtype.kind not in "iuf":
        return array, None
    scale, offset = (
        _factor(array, name, usual) for name, usual in (("scale_factor", 1.0), ("add_offset", 0.0))
    )
    wanted = np.dtype(dtype or _smallest(array.dtype, scale, offset))
    if wanted.kind != "f":
        raise invalid_array(f"{array.path}: unpacked values need float32 or float64, not {wanted}")
    stored = array.dtype.newbyteorder("=")
    packed = _read_as(stored, attributes.get("_Unsigned"))
    missing = tuple(read_missing_numbers(attributes, stored, packed))
    decoder = ValueDecoder(scale, offset, missing, packed.str, wanted.str)
    kept = {name: value for name, value in attributes.items() if name not in _PACKING}
    document = {
        **array.document,
        "attributes": kept,
        "data_type": wanted.name,
        "fill_value": "NaN",
        "codecs": list(CODECS),
    }
    return replace(array, document=document), decoder


def find_decoder(array: ArrayDocument) -> ValueDecoder | None:
    """Return the decoder that xarray would apply to an array; None if stored numbers are values."""
    attributes = array.attributes
    if array.dtype.kind not in "iuf" or not any(name in attributes for name in _PACKING):
        return None
    is_float = array.dtype.kind == "f"
    wanted = np.float64 if array.is_packed else array.dtype if is_float else None
    _, decoder = unpack_array(array, wanted, always=True)
    if decoder is None or array.is_packed:
        return decoder
    if not np.isnan(np.array(decoder.missing, np.float64)).all():
        return decoder
    has_other_sign = np.dtype(decoder.packed) != array.dtype.newbyteorder("=")
    return replace(decoder, dtype=decoder.packed) if has_other_sign else None


def is_nan(value: Any) -> bool:
    """Whether an attribute holds only NaN."""
    found = read_numbers(value)
    return bool(len(found)) and bool(np.isnan(found).all())


def _smallest(dtype: np.dtype[Any], scale: float, offset: float) -> str:
    """Return the smallest data type that distinguishes all unpacked values."""
    steps = 2.0 ** (8 * dtype.itemsize) + abs(offset / scale if scale else 0.0)
    return "f4" if dtype.itemsize * 8 <= _EXACT_BITS and steps < _FLOAT32_STEPS else "f8"


def _factor(array: ArrayDocument, name: str, usual: float) -> float:
    value = array.attributes.get(name, usual)
    found = read_numbers(value)
    if not len(found):
        raise _invalid(array.path, f"attribute {name} = {value!r} is not a number")
    return float(found[0])


def _read_as(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    flag = str(unsigned).lower()
    if stored.kind == "i" and flag == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and flag == "false":
        return np.dtype(f"i{stored.itemsize}")
    return stored
