"""``zarr.json`` documents as columns of structure files, and back (docs/format/draft.md).

`split_document` takes a document apart, `join_document` rebuilds it. Rebuilt documents are compact
JSON with the members in the order in which zarr-python writes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.draft.json_text import dump_json

SEPARATOR: Final = "/"
_ARRAY_MEMBERS: Final = {
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
}
_GROUP_MEMBERS: Final = {"attributes", "zarr_format", "node_type", "consolidated_metadata"}


@dataclass(frozen=True, slots=True)
class ArrayDocument:
    """The array metadata of a ``zarr.json``; ``fill_value`` and configurations are JSON text."""

    shape: list[int]
    data_type: str
    fill_value: bytes | None
    dimension_names: list[str | None] | None
    chunk_shape: list[int]
    codecs: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Document:
    """A ``zarr.json``: the attributes, and the metadata of an array, None for a group."""

    attributes: dict[str, Any]
    array: ArrayDocument | None


def split_document(data: bytes, key: str) -> Document:
    """Take a ``zarr.json`` apart; raise `FormatError` if a structure file cannot store it.

    ``key`` is its Zarr key or path, for errors.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{key}: it is not JSON ({error})", kind=ErrorKind.BAD_METADATA
        ) from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{key}: it is not a JSON object", kind=ErrorKind.BAD_METADATA)
    attributes = document.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise InvalidInputError(
            f"{key}: attributes {attributes!r:.80} is not an object", kind=ErrorKind.BAD_METADATA
        )
    is_array = document.get("node_type") == "array"
    unknown = set(document) - (_ARRAY_MEMBERS if is_array else _GROUP_MEMBERS)
    if unknown:
        _refuse(f"the member {min(unknown)!r} of zarr.json", key)
    if not is_array:
        if document.get("consolidated_metadata") is not None:
            _refuse("consolidated metadata", key)
        return Document(attributes or {}, None)
    if document.get("storage_transformers"):
        _refuse("storage transformers", key)
    array = ArrayDocument(
        document["shape"],
        _split_data_type(document.get("data_type"), key),
        dump_json(document["fill_value"]) if "fill_value" in document else None,
        document.get("dimension_names"),
        _split_chunk_grid(document.get("chunk_grid"), key),
        [_split_codec(codec, key) for codec in document["codecs"]],
    )
    _require_default_keys(document.get("chunk_key_encoding"), key)
    return Document(attributes or {}, array)


def join_document(attributes: bytes, array: ArrayDocument | None) -> bytes:
    """Rebuild a ``zarr.json``; ``attributes`` are JSON text."""
    if array is None:
        return b'{"attributes":%b,"zarr_format":3,"node_type":"group"}' % attributes
    before = {
        "shape": array.shape,
        "data_type": array.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": SEPARATOR}},
    }
    codecs = b",".join(_join_codec(name, configuration) for name, configuration in array.codecs)
    members = [dump_json(before)[1:-1]]
    if array.fill_value is not None:
        members.append(b'"fill_value":' + array.fill_value)
    members += [b'"codecs":[%b]' % codecs, b'"attributes":' + attributes]
    if array.dimension_names is not None:
        members.append(b'"dimension_names":' + dump_json(array.dimension_names))
    members.append(b'"zarr_format":3,"node_type":"array","storage_transformers":[]')
    return b"{%b}" % b",".join(members)


def _join_codec(name: str, configuration: bytes | None) -> bytes:
    if configuration is None:
        return b'{"name":%b}' % dump_json(name)
    return b'{"name":%b,"configuration":%b}' % (dump_json(name), configuration)


def _split_data_type(data_type: Any, key: str) -> str:
    if isinstance(data_type, dict) and set(data_type) == {"name"}:
        data_type = data_type["name"]
    if not isinstance(data_type, str):
        _refuse(f"the data type {data_type!r:.100}: only names of data types", key)
    _require_unicode(data_type, key)
    return data_type


def _split_chunk_grid(grid: Any, key: str) -> list[int]:
    if isinstance(grid, dict) and set(grid) == {"name", "configuration"}:
        configuration = grid["configuration"]
        if (
            grid["name"] == "regular"
            and isinstance(configuration, dict)
            and set(configuration) == {"chunk_shape"}
        ):
            chunk_shape: list[int] = configuration["chunk_shape"]
            return chunk_shape
    return _refuse(f"the chunk grid {grid!r:.100}: only regular grids", key)


def _split_codec(codec: Any, key: str) -> tuple[str, bytes | None]:
    if isinstance(codec, str):
        codec = {"name": codec}
    if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
        _refuse(f"the codec {codec!r:.100}", key)
    if set(codec) - {"name", "configuration"}:
        _refuse(f"the codec {codec!r:.100}: only its name and configuration", key)
    _require_unicode(codec["name"], key)
    if "configuration" not in codec:
        return codec["name"], None
    if not isinstance(codec["configuration"], dict):
        _refuse(f"the codec {codec!r:.100}: its configuration is not an object", key)
    return codec["name"], dump_json(codec["configuration"])


def _require_default_keys(encoding: Any, key: str) -> None:
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if isinstance(encoding, dict) and not set(encoding) - {"name", "configuration"}:
        configuration = encoding.get("configuration", {})
        if encoding.get("name") == "default" and configuration in ({}, {"separator": SEPARATOR}):
            return
    _refuse(f"the chunk key encoding {encoding!r:.100}", key)


def _require_unicode(text: str, key: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{key}: {text!r:.80} has a lone surrogate", kind=ErrorKind.BAD_METADATA
        ) from error


def _refuse(what: str, key: str) -> NoReturn:
    raise FormatError(
        f"repositories of generation draft cannot store {what}; use generation v2, or convert the "
        "repository with `icefloe convert SOURCE TARGET --to v2`",
        file=key,
        kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
    )
