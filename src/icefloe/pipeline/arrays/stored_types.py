"""Converts variables to requested data types and packing. Pure.

A conversion is the metadata of the stored array, and the transforms from values that are read to
values that are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument
from icefloe.pipeline.arrays.packed_values import ValueEncoder, unpack_array
from icefloe.spark.option_parsing import suggest_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


ValueTransform: TypeAlias = "Callable[[NDArray[Any]], NDArray[Any]]"
ConvertedArray: TypeAlias = "tuple[ArrayDocument, tuple[ValueTransform, ...]]"

_REFERRING_ATTRIBUTES: Final = ("bounds", "climatology", "coordinates", "grid_mapping")
"""CF attributes that refer to auxiliary variables."""


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The requested data types and packing by variable; ``dtype`` is for all other variables.

    With ``unpack``, packed numbers are unpacked.
    """

    unpack: bool = False
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    dtype: np.dtype[Any] | None = None
    encoders: Mapping[str, ValueEncoder] = field(default_factory=dict)

    @classmethod
    def of(cls, unpack: bool, dtype: Any, pack: Any) -> TypeOptions:  # noqa: FBT001
        """Parse arguments; raise `InvalidInputError` if they are invalid."""
        if pack is not None and not isinstance(pack, Mapping):
            raise array_error(
                f"pack must be a mapping from variable names to encodings, not {pack!r}"
            )
        encoders = {name: ValueEncoder.of(name, spec) for name, spec in (pack or {}).items()}
        if not isinstance(dtype, Mapping):
            return cls(unpack, {}, None if dtype is None else _parse_number_type(dtype), encoders)
        both = sorted(dtype.keys() & encoders.keys())
        if both:
            raise array_error(
                f"{', '.join(both)}: pass the data type in dtype or in pack, not in both"
            )
        dtypes = {name: _parse_number_type(value) for name, value in dtype.items()}
        return cls(unpack, dtypes, None, encoders)

    @property
    def is_set(self) -> bool:
        """Whether a data type or packing is requested."""
        return self.dtype is not None or bool(self.dtypes or self.encoders)

    def require_known(self, variables: Iterable[str], coordinates: Iterable[str]) -> None:
        """Raise `InvalidInputError` if a name is not a data variable."""
        available = sorted(variables)
        for what, names in (("dtype", self.dtypes), ("pack", self.encoders)):
            for name in names:
                if name in coordinates:
                    raise array_error(
                        f"{what}: {name!r} is a coordinate, which is stored unchanged"
                    )
                if name not in available:
                    raise array_error(
                        f"{what}: unknown variable {name!r}; {suggest_name(name, available)}"
                    )

    def apply_to(self, name: str, array: ArrayDocument, *, is_data: bool) -> ConvertedArray:
        """Convert a variable; ``is_data`` is False for auxiliary variables."""
        if name in self.encoders:
            return pack_array(array, self.encoders[name])
        is_target = is_data and array.dtype.kind in "iuf"
        dtype = self.dtypes.get(name, self.dtype if is_target else None)
        if dtype is None or (self.unpack and array.is_packed):
            document, decoder = unpack_array(array, dtype) if self.unpack else (array, None)
            return document, () if decoder is None else (decoder.decode,)
        return convert_array(array, dtype)


def convert_array(array: ArrayDocument, dtype: np.dtype[Any]) -> ConvertedArray:
    """Convert an array to another data type; the writer checks that values fit.

    Conversion to floating point unpacks packed numbers, and missing ones become NaN.
    """
    if array.dtype == dtype and not array.is_packed:
        return array, ()
    if array.dtype.kind not in "iuf":
        raise array_error(
            f"{array.path}: cannot convert {array.dtype} to {dtype}: leave it out of dtype"
        )
    if dtype.kind == "f":
        document, decoder = unpack_array(array, dtype, always=True)
        return document, () if decoder is None else (decoder.decode,)
    if array.dtype.kind == "f":
        raise array_error(
            f"{array.path}: cannot convert {array.dtype} to {dtype}; pack={{…}} stores packed "
            "integers, or pass dtype by variable, such as {'rain': 'float64'}"
        )
    return array.with_chunks(codecs=CODECS).with_dtype(dtype), ()


def pack_array(array: ArrayDocument, encoder: ValueEncoder) -> ConvertedArray:
    """Pack the values of an array."""
    values, decoder = unpack_array(array, np.float64, always=True)
    if decoder is None:
        raise array_error(f"{array.path}: {array.dtype} cannot be packed: leave it out of pack")
    return encoder.apply_to(values), (decoder.decode, encoder.encode)


def convert_like(source: ArrayDocument, target: ArrayDocument) -> ConvertedArray:
    """Convert an array to the data type and packing of the array that it is appended to."""
    if source.dtype.kind not in "iuf":
        return source, ()
    is_float = source.dtype.kind == "f"
    if target.dtype.kind in "iu":
        if target.is_packed and (
            is_float or _get_packing_attributes(source) != _get_packing_attributes(target)
        ):
            return pack_array(source, ValueEncoder.from_array(target))
        if is_float:
            return source, ()  # reported as a mismatch
    return convert_array(source, target.dtype)


def find_auxiliary_variables(arrays: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Find variables that describe others: bounds, auxiliary coordinates and times."""
    variables = set()
    for path, metadata in arrays.items():
        attributes = metadata.get("attributes", {})
        if " since " in str(attributes.get("units")):
            variables.add(path)
        folder = path.rpartition("/")[0]
        for attribute in _REFERRING_ATTRIBUTES:
            names = str(attributes.get(attribute, "")).split()
            variables.update(f"{folder}/{name}".strip("/") for name in names)
    return variables


def _get_packing_attributes(array: ArrayDocument) -> list[Any]:
    return [array.attributes.get(name) for name in ("scale_factor", "add_offset", "_FillValue")]


def _parse_number_type(dtype: Any) -> np.dtype[Any]:
    try:
        result = np.dtype(dtype)
    except TypeError as error:
        raise array_error(f"dtype {dtype!r} is not a data type: {error}") from error
    if result.kind not in "iuf":
        raise array_error(f"dtype {result} is not numeric: use float32 or int16, for example")
    native: np.dtype[Any] = result.newbyteorder("=")
    return native
