"""Splits a ``zarr.json`` into the parts that a snapshot stores separately, and joins them.

Generations that store the parts of array metadata have words for regular chunk grids, the core data
types of the Zarr specification and raw types. Everything else is refused when it is written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Never

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.zarr_fill_value import (
    CORE_DATA_TYPES,
    format_fill_value,
    parse_fill_value,
)
from icefloe.model.chunk_payload import MAX_U32

MAX_DEPTH: Final = 200
"""The maximum nesting of a document; parsers of JSON have limits of their own."""

_RAW: Final = re.compile(r"r([1-9]\d{0,9})", re.ASCII)
_ARRAY_MEMBERS: Final = frozenset(
    (
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "dimension_names",
        "zarr_format",
        "node_type",
        "storage_transformers",
    )
)
_GROUP_MEMBERS: Final = frozenset(
    ("attributes", "zarr_format", "node_type", "consolidated_metadata")
)


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """The metadata of an array, without attributes.

    ``data_type`` is the name of a core data type, or the number of bits of a raw type.
    ``fill_value`` is one element, little-endian. ``separator`` of chunk keys is None if it is not
    given. ``codecs`` and ``storage_transformers`` are objects with a name and perhaps a
    configuration.
    """

    shape: tuple[int, ...]
    data_type: str | int
    chunk_shape: tuple[int, ...]
    separator: str | None
    fill_value: bytes
    codecs: tuple[dict[str, Any], ...]
    dimension_names: tuple[str | None, ...] | None
    storage_transformers: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The metadata of a node: its attributes, and the rest of it if it is an array."""

    attributes: dict[str, Any]
    array: ArrayParts | None


def split_document(data: bytes, key: str, generation: str) -> NodeParts:
    """Split a valid ``zarr.json``; ``key`` and ``generation`` are for errors.

    Raises `FormatError` if it has something that the parts have no word for, and
    `InvalidInputError` if it is not valid.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not valid JSON ({error})", file=key) from error
    if not isinstance(document, dict):
        raise FormatError("not a JSON object", file=key)
    return _Splitter(key, generation).split(document, data)


def join_document(parts: NodeParts) -> dict[str, Any]:
    """Return the members of the ``zarr.json``, in the order in which zarr-python writes them."""
    array = parts.array
    if array is None:
        return {"attributes": parts.attributes, "zarr_format": 3, "node_type": "group"}
    encoding: dict[str, Any] = {"name": "default"}
    if array.separator is not None:
        encoding["configuration"] = {"separator": array.separator}
    names = array.dimension_names
    return {
        "shape": list(array.shape),
        "data_type": _format_data_type(array.data_type),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(array.chunk_shape)},
        },
        "chunk_key_encoding": encoding,
        "fill_value": format_fill_value(array.fill_value, array.data_type),
        "codecs": list(array.codecs),
        "attributes": parts.attributes,
        **({} if names is None else {"dimension_names": list(names)}),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": list(array.storage_transformers),
    }


def _format_data_type(data_type: str | int) -> str | dict[str, Any]:
    if isinstance(data_type, str):
        return data_type
    return {"name": "raw_bytes", "configuration": {"length_bytes": data_type // 8}}


@dataclass(frozen=True, slots=True)
class _Splitter:
    key: str
    generation: str

    def split(self, document: dict[str, Any], data: bytes) -> NodeParts:
        if is_nested_deeply(document, data):
            self._refuse(f"nesting of more than {MAX_DEPTH} levels")
        is_array = document.get("node_type") == "array"
        known = _ARRAY_MEMBERS if is_array else _GROUP_MEMBERS
        if unknown := sorted(document.keys() - known):
            self._refuse(f"the member {unknown[0]!r} of zarr.json")
        if document.get("consolidated_metadata") is not None:
            self._refuse("consolidated metadata")
        attributes = document.get("attributes")
        if attributes is not None and not isinstance(attributes, dict):
            self._reject(f"attributes {attributes!r:.80} is not an object")
        return NodeParts(attributes or {}, self._split_array(document) if is_array else None)

    def _split_array(self, document: dict[str, Any]) -> ArrayParts:
        shape, names = document.get("shape"), document.get("dimension_names")
        chunk_shape = self._read_chunk_shape(document.get("chunk_grid"))
        if not isinstance(shape, list) or len(chunk_shape) != len(shape):
            self._reject(f"the chunk shape {chunk_shape} does not fit the shape {shape!r:.80}")
        if 0 in chunk_shape:
            self._refuse(f"the chunk shape {list(chunk_shape)}, with chunks of length 0")
        data_type = self._read_data_type(document.get("data_type"))
        if "fill_value" not in document:
            self._reject("there is no fill_value")
        try:
            fill_value = parse_fill_value(document["fill_value"], data_type)
        except InvalidInputError as error:
            self._reject(error.message)
        return ArrayParts(
            tuple(shape),
            data_type,
            chunk_shape,
            self._read_separator(document.get("chunk_key_encoding")),
            fill_value,
            self._read_extensions(document, "codecs"),
            None if names is None else tuple(names),
            self._read_extensions(document, "storage_transformers"),
        )

    def _read_chunk_shape(self, grid: Any) -> tuple[int, ...]:
        name, configuration = self._read_extension(grid, "chunk_grid")
        if name != "regular" or not (configuration or {}).keys() <= {"chunk_shape"}:
            self._refuse(f"the chunk grid {grid!r:.80}")
        chunk_shape = (configuration or {}).get("chunk_shape")
        if not isinstance(chunk_shape, list):
            self._reject(f"the chunk shape {chunk_shape!r:.80} is not a list")
        return tuple(chunk_shape)

    def _read_data_type(self, value: Any) -> str | int:
        name, configuration = self._read_extension(value, "data_type")
        if name in CORE_DATA_TYPES and not configuration:
            return name
        num_bits = 0
        if name == "raw_bytes" and configuration is not None and len(configuration) == 1:
            length = configuration.get("length_bytes")
            num_bits = length * 8 if type(length) is int else 0
        elif not configuration and (match := _RAW.fullmatch(name)):
            num_bits = int(match[1])
        if not 0 < num_bits <= MAX_U32 or num_bits % 8:
            self._refuse(f"the data type {value!r:.80}")
        return num_bits

    def _read_separator(self, value: Any) -> str | None:
        name, configuration = self._read_extension(value, "chunk_key_encoding")
        configuration = configuration or {}
        separator = configuration.get("separator")
        if (
            name != "default"
            or not configuration.keys() <= {"separator"}
            or separator not in (None, "/", ".")
        ):
            self._refuse(f"the chunk key encoding {value!r:.80}")
        return None if separator is None else str(separator)

    def _read_extensions(self, document: dict[str, Any], member: str) -> tuple[dict[str, Any], ...]:
        values = document.get(member)
        if values is None:
            values = []
        if not isinstance(values, list):
            self._reject(f"{member} {values!r:.80} is not a list")
        result = []
        for value in values:
            name, configuration = self._read_extension(value, member)
            extension: dict[str, Any] = {"name": name}
            if configuration is not None:
                extension["configuration"] = configuration
            result.append(extension)
        return tuple(result)

    def _read_extension(self, value: Any, member: str) -> tuple[str, dict[str, Any] | None]:
        """Return the name and configuration of an extension; a name alone is an extension, too."""
        if isinstance(value, str):
            return value, None
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str):
            self._reject(f"{member} {value!r:.80} is neither a name nor an object with a name")
        # Readers may ignore an extension only if this is false.
        if value.keys() - {"name", "configuration", "must_understand"} or not value.get(
            "must_understand", True
        ):
            self._refuse(f"the members of {member} {value!r:.80}")
        configuration = value.get("configuration")
        if configuration is not None and not isinstance(configuration, dict):
            self._reject(f"the configuration of {member} {value!r:.80} is not an object")
        return name, configuration

    def _refuse(self, feature: str) -> Never:
        raise FormatError(
            f"repositories of the generation {self.generation} cannot store {feature}; convert the "
            "repository with `icefloe convert SOURCE TARGET --to v2`",
            file=self.key,
            kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )

    def _reject(self, problem: str) -> Never:
        raise InvalidInputError(
            f"{self.key}: {problem}; nothing was stored", kind=ErrorKind.INVALID_ARRAY_METADATA
        )


def is_nested_deeply(document: Any, data: bytes) -> bool:
    """Whether a document is nested more than `MAX_DEPTH` levels deep; ``data`` is its JSON."""
    # The number of brackets is a bound, which suffices for most documents.
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return False
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
