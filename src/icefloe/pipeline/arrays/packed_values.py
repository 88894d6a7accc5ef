"""CF packing: values stored as integers with ``scale_factor`` and ``add_offset``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.number_attributes import read_missing_numbers, read_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.errors import InvalidInputError

_PACKING_KEYS: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_ENCODING_KEYS: Final = ("dtype", "scale_factor", "add_offset", "_FillValue")
_MAX_PACKED_BYTES: Final = 4
"""Larger integers are not exact in float64, which is used for the conversion."""

_MAX_EXACT_BITS: Final = 16
"""Maximum width of an integer data type that float32 represents exactly."""

_NUM_FLOAT32_STEPS: Final = 2.0**23
"""Number of equally spaced values that float32 distinguishes, between two powers of two."""


@dataclass(frozen=True, slots=True)
class ValueDecoder:
    """Conversion of packed numbers to values: ``number * scale + offset``, NaN for ``missing``.

    Numbers are read as ``packed_dtype``: classic NetCDF stores unsigned integers as signed ones,
    with the attribute ``_Unsigned``. ``dtype`` is the data type of values.
    """

    scale: float
    offset: float
    missing: tuple[float, ...]
    packed_dtype: str
    dtype: str

    def decode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Decode stored numbers in double precision, then cast to ``dtype``."""
        numbers = np.asarray(stored).astype(self.packed_dtype, copy=False)
        values = numbers.astype(np.float64)
        values *= self.scale
        values += self.offset
        for number in self.missing:
            values[numbers == number] = np.nan
        return np.asarray(cast_values(values, np.dtype(self.dtype)))


@dataclass(frozen=True, slots=True)
class ValueEncoder:
    """Conversion of values to packed numbers: ``round((value - offset) / scale)``.

    ``dtype`` is the integer data type of the numbers, ``missing`` the number that NaN becomes.
    """

    dtype: str
    scale: float
    offset: float
    missing: int

    @classmethod
    def of(cls, name: str, spec: Any) -> ValueEncoder:
        """Parse the encoding of a variable, with the keys of xarray's encoding."""
        if not isinstance(spec, Mapping) or not {"dtype"} <= spec.keys() <= {*_ENCODING_KEYS}:
            raise _error(
                name, f"expected {', '.join(_ENCODING_KEYS)} (dtype is required), got {spec!r}"
            )
        try:
            dtype = np.dtype(spec["dtype"])
            scale, offset = float(spec.get("scale_factor", 1)), float(spec.get("add_offset", 0))
        except (TypeError, ValueError) as error:
            raise _error(name, f"invalid packing {dict(spec)}: {error}") from error
        if dtype.kind not in "iu" or dtype.itemsize > _MAX_PACKED_BYTES:
            raise _error(name, f"packed numbers must be integers of up to 32 bits, not {dtype}")
        if not (np.isfinite([scale, offset]).all() and scale):
            raise _error(
                name,
                f"scale_factor {scale} must be finite and not 0, and add_offset {offset} finite",
            )
        limits = np.iinfo(dtype.str)
        missing = spec.get("_FillValue", limits.min if dtype.kind == "i" else limits.max)
        if isinstance(missing, bool) or missing not in range(limits.min, limits.max + 1):
            raise _error(name, f"_FillValue {missing!r} is not in the range of {dtype}")
        return cls(dtype.name, scale, offset, int(missing))

    @classmethod
    def from_array(cls, array: ArrayDocument) -> ValueEncoder:
        """Return the encoder of an array that was packed by this module."""
        attributes = array.document["attributes"]
        encoding = {name: attributes[name] for name in _ENCODING_KEYS if name in attributes}
        return cls.of(array.path, {**encoding, "dtype": array.dtype.name})

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Encode values.

        Raises `InvalidInputError` if a value is out of range or would become ``missing``.
        """
        numbers = (np.asarray(values, np.float64) - self.offset) / self.scale
        is_missing = np.isnan(numbers)
        numbers = np.where(is_missing, self.missing, np.rint(numbers))
        limits = np.iinfo(np.dtype(self.dtype))
        if numbers.size and not (limits.min <= numbers.min() and numbers.max() <= limits.max):
            low, high = sorted(n * self.scale + self.offset for n in (limits.min, limits.max))
            raise array_error(
                f"values range from {np.nanmin(values)} to {np.nanmax(values)}, but {self} "
                f"holds {low:g} to {high:g}: choose another scale_factor or add_offset"
            )
        if ((numbers == self.missing) & ~is_missing).any():
            raise array_error(
                f"values near {self.missing * self.scale + self.offset:g} would be stored "
                f"by {self} as {self.missing}, the _FillValue: choose another _FillValue"
            )
        return numbers.astype(self.dtype)

    def apply_to(self, array: ArrayDocument) -> ArrayDocument:
        """Return the metadata of an array after packing."""
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


def _error(name: str, problem: str) -> InvalidInputError:
    return array_error(f"{name}: {problem}")


def unpack_array(
    array: ArrayDocument, dtype: Any = None, *, always: bool = False
) -> tuple[ArrayDocument, ValueDecoder | None]:
    """Return the metadata of the unpacked array, and its decoder.

    An array that is not packed or not numeric is returned unchanged, with None. With ``always``, a
    numeric array that is not packed is decoded too: missing values become NaN. Raises
    `InvalidInputError` if ``dtype`` is not floating point.
    """
    attributes = array.attributes
    if not (array.is_packed or always) or array.dtype.kind not in "iuf":
        return array, None
    scale = _read_factor(array, "scale_factor", 1.0)
    offset = _read_factor(array, "add_offset", 0.0)
    target = np.dtype(dtype or _find_smallest_dtype(array.dtype, scale, offset))
    if target.kind != "f":
        raise array_error(f"{array.path}: unpacked values must be float32 or float64, not {target}")
    stored = array.dtype.newbyteorder("=")
    packed_dtype = _find_packed_dtype(stored, attributes.get("_Unsigned"))
    missing = tuple(read_missing_numbers(attributes, stored, packed_dtype))
    decoder = ValueDecoder(scale, offset, missing, packed_dtype.str, target.str)
    remaining = {name: value for name, value in attributes.items() if name not in _PACKING_KEYS}
    document = {
        **array.document,
        "attributes": remaining,
        "data_type": target.name,
        "fill_value": "NaN",
        "codecs": list(CODECS),
    }
    return replace(array, document=document), decoder


def find_decoder(array: ArrayDocument) -> ValueDecoder | None:
    """Return a decoder that does what xarray does with an array; None if that is nothing."""
    attributes = array.attributes
    if array.dtype.kind not in "iuf" or not any(name in attributes for name in _PACKING_KEYS):
        return None
    is_float = array.dtype.kind == "f"
    target = np.float64 if array.is_packed else array.dtype if is_float else None
    _, decoder = unpack_array(array, target, always=True)
    if decoder is None or array.is_packed:
        return decoder
    if not np.isnan(np.array(decoder.missing, np.float64)).all():
        return decoder
    # Nothing becomes NaN, so integers stay integers; at most their signedness changes.
    has_other_sign = np.dtype(decoder.packed_dtype) != array.dtype.newbyteorder("=")
    return replace(decoder, dtype=decoder.packed_dtype) if has_other_sign else None


def is_nan(value: Any) -> bool:
    """Whether an attribute is numeric and all its numbers are NaN."""
    numbers = read_numbers(value)
    return bool(len(numbers)) and bool(np.isnan(numbers).all())


def _find_smallest_dtype(dtype: np.dtype[Any], scale: float, offset: float) -> str:
    """Return the smallest data type that distinguishes all unpacked values."""
    # The largest absolute value, in units of the distance between adjacent values.
    steps = 2.0 ** (8 * dtype.itemsize) + abs(offset / scale if scale else 0.0)
    return "f4" if dtype.itemsize * 8 <= _MAX_EXACT_BITS and steps < _NUM_FLOAT32_STEPS else "f8"


def _read_factor(array: ArrayDocument, name: str, default: float) -> float:
    value = array.attributes.get(name, default)
    numbers = read_numbers(value)
    if not len(numbers):
        raise _error(array.path, f"attribute {name} = {value!r} is not a number")
    return float(numbers[0])


def _find_packed_dtype(stored: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Return the stored data type with the signedness of the attribute ``_Unsigned``."""
    flag = str(unsigned).lower()
    if stored.kind == "i" and flag == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and flag == "false":
        return np.dtype(f"i{stored.itemsize}")
    return stored
