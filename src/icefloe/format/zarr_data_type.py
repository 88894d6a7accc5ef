"""Core data types of Zarr, and fill values: between JSON in ``zarr.json`` and one element.

A data type is the name of a core data type, or the number of bits of a raw type. The bytes of an
element are little-endian, so that every bit pattern is kept: NaN payloads, infinities, and the sign
of zero. The JSON is what zarr-python writes.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from typing import Any, Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import MAX_U32

INTEGER_SIZES: Final = {
    f"{prefix}{8 * size}": (size, prefix == "int")
    for prefix in ("int", "uint")
    for size in (1, 2, 4, 8)
}
"""The size in bytes of the integer types, and whether they are signed."""

FLOAT_FORMATS: Final = {"float16": "<e", "float32": "<f", "float64": "<d"}
"""The `struct` formats of the float types."""

COMPLEX_PARTS: Final = {"complex64": "float32", "complex128": "float64"}
"""The float types of the parts of the complex types."""

CORE_DATA_TYPES: Final = ("bool", *INTEGER_SIZES, *FLOAT_FORMATS, *COMPLEX_PARTS)
"""The names of the data types of the Zarr specification, without raw types."""

# The NaN that the Zarr specification calls "NaN".
_NAN: Final = {"float16": 0x7E00, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
_RAW: Final = re.compile(r"r([1-9]\d{0,9})", re.ASCII)
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)


def parse_data_type(value: str | dict[str, Any]) -> str | int | None:
    """Return the data type of a ``zarr.json``, a name or an extension; None for other types."""
    if value in CORE_DATA_TYPES:
        return str(value)
    num_bits = 0
    if isinstance(value, str):
        match = _RAW.fullmatch(value)
        num_bits = int(match[1]) if match else 0
    elif value["name"] == "raw_bytes" and value["configuration"].keys() == {"length_bytes"}:
        length = value["configuration"]["length_bytes"]
        num_bits = length * 8 if type(length) is int else 0
    return num_bits if 0 < num_bits <= MAX_U32 and num_bits % 8 == 0 else None


def format_data_type(data_type: str | int) -> str | dict[str, Any]:
    """Return the JSON of a data type."""
    if isinstance(data_type, str):
        return data_type
    return {"name": "raw_bytes", "configuration": {"length_bytes": data_type // 8}}


def get_element_size(data_type: str | int) -> int:
    """Return the size in bytes of an element."""
    if isinstance(data_type, int):
        return data_type // 8
    if data_type == "bool":
        return 1
    if data_type in INTEGER_SIZES:
        return INTEGER_SIZES[data_type][0]
    if data_type in FLOAT_FORMATS:
        return struct.calcsize(FLOAT_FORMATS[data_type])
    return 2 * get_element_size(COMPLEX_PARTS[data_type])


def parse_fill_value(value: Any, data_type: str | int) -> bytes:
    """Return the element of the fill value in a ``zarr.json``.

    Raises `InvalidInputError` if it is not a value of the data type.
    """
    element = _parse(value, data_type)
    if element is None:
        name = f"r{data_type}" if isinstance(data_type, int) else data_type
        raise InvalidInputError(
            f"the fill value {value!r:.80} is not a value of the data type {name}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    return element


def format_fill_value(element: bytes, data_type: str | int) -> Any:
    """Return the JSON of the fill value of an array."""
    if isinstance(data_type, int):
        return base64.b64encode(element).decode()
    if data_type == "bool":
        return element != b"\0"
    if data_type in INTEGER_SIZES:
        return int.from_bytes(element, "little", signed=INTEGER_SIZES[data_type][1])
    if data_type in FLOAT_FORMATS:
        return _format_float(element, data_type)
    half, part = len(element) // 2, COMPLEX_PARTS[data_type]
    return [_format_float(element[:half], part), _format_float(element[half:], part)]


def pack_float(value: float, data_type: str) -> bytes | None:
    """Return the element nearest to a number, or None if it is too large."""
    try:
        element = struct.pack(FLOAT_FORMATS[data_type], value)
    except OverflowError:
        return None
    is_finite = math.isfinite(struct.unpack(FLOAT_FORMATS[data_type], element)[0])
    return element if is_finite else None


def _parse(value: Any, data_type: str | int) -> bytes | None:
    if isinstance(data_type, int):
        return _parse_raw(value, data_type // 8)
    if data_type == "bool":
        return bytes([value]) if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if data_type in INTEGER_SIZES:
        return _parse_integer(value, *INTEGER_SIZES[data_type])
    if data_type in FLOAT_FORMATS:
        return _parse_float(value, data_type)
    if not isinstance(value, list) or len(value) != 2:
        return None
    parts = [_parse_float(part, COMPLEX_PARTS[data_type]) for part in value]
    return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]


def _parse_raw(value: Any, size: int) -> bytes | None:
    try:
        # zarr-python writes base 64, the specification has a list of bytes.
        element = base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(value)
    except (ValueError, TypeError, binascii.Error):
        return None
    is_list = isinstance(value, list) and all(type(item) is int for item in value)
    return element if len(element) == size and (is_list or isinstance(value, str)) else None


def _parse_integer(value: Any, size: int, signed: bool) -> bytes | None:  # noqa: FBT001
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        return None
    try:
        return value.to_bytes(size, "little", signed=signed)
    except OverflowError:
        return None


def _parse_float(value: Any, data_type: str) -> bytes | None:
    code = FLOAT_FORMATS[data_type]
    size = struct.calcsize(code)
    if isinstance(value, str):
        if value == "NaN":
            return _NAN[data_type].to_bytes(size, "little")
        if value in ("Infinity", "-Infinity"):
            return struct.pack(code, float(value))
        if _HEX.fullmatch(value) and len(value) == 2 + 2 * size:
            return int(value, 16).to_bytes(size, "little")
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        # Bare NaN and Infinity, which Python's JSON reads.
        return _parse_float(_NON_FINITE_NAMES[repr(value)], data_type)
    try:
        return pack_float(float(value), data_type)
    except OverflowError:
        return None


_NON_FINITE_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _format_float(element: bytes, data_type: str) -> float | str:
    value: float = struct.unpack(FLOAT_FORMATS[data_type], element)[0]
    if math.isfinite(value):
        return value
    bits = int.from_bytes(element, "little")
    if math.isnan(value) and bits != _NAN[data_type]:
        return f"0x{bits:0{2 * len(element)}x}"
    return _NON_FINITE_NAMES[repr(value)]
