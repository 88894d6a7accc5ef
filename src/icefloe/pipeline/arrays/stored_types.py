"""What variables are stored as, where somebody asks for data types of their own, or packing. Pure.

Each answer is an array as it will be, and the steps that turn values as they are read into those
that are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.array_document import CODECS
from icefloe.pipeline.arrays.packed_values import ValueEncoder, unpack_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from icefloe.pipeline.arrays.array_document import ArrayDocument

ValueTransform: TypeAlias = "Callable[[NDArray[Any]], NDArray[Any]]"
ConvertedArray: TypeAlias = "tuple[ArrayDocument, tuple[ValueTransform, ...]]"

_NAMING: Final = ("bounds", "climatology", "coordinates", "grid_mapping")
"""Attributes by which variables name others that describe them."""


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """What is asked for.

    Parameters
    ----------
    unpack
        Whether packed numbers are stored as the values that they stand for.
    dtypes
        The data types of variables by their names.
    dtype
        That of all other variables that hold data.
    packs
        How variables are packed, by their names.
    """

    unpack: bool
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    dtype: np.dtype[Any] | None = None
    packs: Mapping[str, ValueEncoder] = field(default_factory=dict)

    @classmethod
    def of(cls, unpack: bool, dtype: Any, pack: Any) -> TypeOptions:  # noqa: FBT001 - as users say it
        """Read arguments; raises `InvalidInputError` where they mean nothing."""
        if pack is not None and not isinstance(pack, Mapping):
            raise _bad(f"pack says how to pack by the name of a variable, not {pack!r}")
        packs = {name: ValueEncoder.of(name, spec) for name, spec in (pack or {}).items()}
        if not isinstance(dtype, Mapping):
            return cls(unpack, {}, None if dtype is None else _number_type(dtype), packs)
        both = sorted(dtype.keys() & packs.keys())
        if both:
            raise _bad(f"dtype and pack both name {', '.join(both)}: pack says its data type")
        named = {name: _number_type(one) for name, one in dtype.items()}
        return cls(unpack, named, None, packs)

    @property
    def is_set(self) -> bool:
        """Whether other data types, or packing, are asked for."""
        return self.dtype is not None or bool(self.dtypes or self.packs)

    def require_known(self, variables: Iterable[str], others: Iterable[str]) -> None:
        """Raise `InvalidInputError` where something is asked for what is no variable of data."""
        known = sorted(variables)
        for what, names in (("dtype", self.dtypes), ("pack", self.packs)):
            for name in names:
                if name in others:
                    raise _bad(f"{what} names {name!r}, a coordinate, which is stored as it is")
                if name not in known:
                    raise _bad(
                        f"{what} names the variable {name!r}; the files have {', '.join(known)}"
                    )

    def applied(self, name: str, array: ArrayDocument, *, is_data: bool) -> ConvertedArray:
        """Return a variable as it will be; ``is_data`` if it does not describe another one."""
        if name in self.packs:
            return pack_array(array, self.packs[name])
        is_meant = is_data and array.dtype.kind in "iuf"
        dtype = self.dtypes.get(name, self.dtype if is_meant else None)
        if dtype is None or (self.unpack and _is_packed(array)):
            found, packing = unpack_array(array, dtype) if self.unpack else (array, None)
            return found, () if packing is None else (packing.values,)
        return convert_array(array, dtype)


def convert_array(array: ArrayDocument, dtype: np.dtype[Any]) -> ConvertedArray:
    """Let an array have values of another data type, which the writer sees to that they fit.

    Floating point is for values: what packed numbers stand for, and NaN where they are missing.
    """
    if array.dtype == dtype and not _is_packed(array):
        return array, ()
    if array.dtype.kind not in "iuf":
        raise _bad(f"{array.path}: {array.dtype} does not become {dtype}: leave it out of dtype")
    if dtype.kind == "f":
        found, packing = unpack_array(array, dtype, always=True)
        return found, () if packing is None else (packing.values,)
    if array.dtype.kind == "f":
        raise _bad(
            f"{array.path}: {array.dtype} does not become {dtype}; pack={{…}} stores numbers that "
            "stand for its values, and dtype may name variables, as {'rain': 'float64'}"
        )
    return array.with_chunks(codecs=CODECS).with_dtype(dtype), ()


def pack_array(array: ArrayDocument, pack: ValueEncoder) -> ConvertedArray:
    """Let an array have packed numbers, whatever it is stored as now."""
    values, packing = unpack_array(array, np.float64, always=True)
    if packing is None:
        raise _bad(f"{array.path}: {array.dtype} cannot be packed: leave it out of pack")
    return pack.applied(values), (packing.values, pack.numbers)


def convert_like(source: ArrayDocument, target: ArrayDocument) -> ConvertedArray:
    """Do with an array what was done with the one that it is appended to."""
    if source.dtype.kind not in "iuf":
        return source, ()
    is_float = source.dtype.kind == "f"
    if target.dtype.kind in "iu":
        if _is_packed(target) and (is_float or _packing(source) != _packing(target)):
            return pack_array(source, ValueEncoder.like(target))
        if is_float:
            return source, ()  # which is told as a difference
    return convert_array(source, target.dtype)


def find_auxiliary_variables(arrays: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the variables that describe others: bounds, auxiliary coordinates and times."""
    found = set()
    for path, metadata in arrays.items():
        attributes = metadata.get("attributes", {})
        if " since " in str(attributes.get("units")):
            found.add(path)
        folder = path.rpartition("/")[0]
        for named in (str(attributes.get(one, "")).split() for one in _NAMING):
            found.update(f"{folder}/{name}".strip("/") for name in named)
    return found


def _is_packed(array: ArrayDocument) -> bool:
    return bool({"scale_factor", "add_offset"} & array.document.get("attributes", {}).keys())


def _packing(array: ArrayDocument) -> list[Any]:
    attributes = array.document.get("attributes", {})
    return [attributes.get(one) for one in ("scale_factor", "add_offset", "_FillValue")]


def _number_type(dtype: Any) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise _bad(f"dtype {dtype!r} is no data type: {error}") from error
    if found.kind not in "iuf":
        raise _bad(f"dtype {found} is none of numbers: take one such as float32 or int16")
    native: np.dtype[Any] = found.newbyteorder("=")
    return native


def _bad(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.INVALID_ARRAY_METADATA)
