"""Splits a ``zarr.json`` into the parts that a snapshot stores separately, and joins them.

For generations whose snapshots have no place for whole documents. Both know regular chunk grids,
default chunk keys, and extensions with a name and a configuration; documents with anything else
are refused when they are written. Each generation then converts the parts, and refuses those that
its files have no word for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.json_text import is_nested_deeply, parse_extended_json
from icefloe.format.unsupported import unsupported_error
from icefloe.model.chunk_payload import MAX_U32

if TYPE_CHECKING:
    from icefloe.format.generation import Generation
    from icefloe.model.node import NodeSnapshot

MAX_DEPTH: Final = 200
"""The maximum nesting of a document; parsers of JSON have limits of their own."""

NO_FILL_VALUE: Final = object()
"""The fill value of an array whose document has none."""

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

    ``data_type`` is a name, or an object with a name and a configuration. ``separator`` of chunk
    keys is None if it is not given. ``fill_value`` is JSON. ``codecs`` and
    ``storage_transformers`` are objects with a name and perhaps a configuration.
    """

    shape: tuple[int, ...]
    data_type: str | dict[str, Any]
    chunk_shape: tuple[int, ...]
    separator: str | None
    fill_value: Any
    codecs: tuple[dict[str, Any], ...]
    dimension_names: tuple[str | None, ...] | None
    storage_transformers: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The metadata of a node: its attributes, and the rest of it if it is an array."""

    attributes: dict[str, Any]
    array: ArrayParts | None


def split_document(data: bytes, key: str, generation: Generation) -> NodeParts:
    """Split a valid ``zarr.json``; ``key`` and ``generation`` are for errors.

    Raises `FormatError` if it has something that the parts have no word for, and
    `InvalidInputError` if it is not valid.
    """
    document = parse_extended_json(data, "zarr.json", key)
    if not isinstance(document, dict):
        reject_document("it is not a JSON object", key)
    if is_too_deep(document, data):
        refuse_feature(f"nesting of more than {MAX_DEPTH} levels", key, generation)
    return _Splitter(key, generation).split(document)


def split_node(node: NodeSnapshot, generation: Generation) -> NodeParts:
    """Split the ``zarr.json`` of a node that is written; raise if it does not fit the node."""
    if node.id.number > MAX_U32:
        raise FormatError(
            f"the node {node.path} has no number that fits 32 bits", kind=ErrorKind.SERIALIZATION
        )
    parts = split_document(node.user_data, node.path.value, generation)
    if (parts.array is None) == node.is_array:
        raise FormatError(
            f"the node {node.path} is not what its zarr.json says", kind=ErrorKind.SERIALIZATION
        )
    return parts


def is_too_deep(document: dict[str, Any], data: bytes) -> bool:
    """Whether a document exceeds `MAX_DEPTH`; ``data`` is its JSON."""
    # The number of brackets is a bound, which suffices for most documents.
    num_brackets = data.count(b"{") + data.count(b"[")
    return num_brackets > MAX_DEPTH and is_nested_deeply(document, MAX_DEPTH)


def join_document(parts: NodeParts) -> dict[str, Any]:
    """Return the members of the ``zarr.json``, in the order in which zarr-python writes them."""
    array = parts.array
    if array is None:
        return {"attributes": parts.attributes, "zarr_format": 3, "node_type": "group"}
    separator, fill_value, names = array.separator, array.fill_value, array.dimension_names
    chunk_grid = {"chunk_shape": list(array.chunk_shape)}
    return {
        "shape": list(array.shape),
        "data_type": array.data_type,
        "chunk_grid": _join_extension("regular", chunk_grid),
        "chunk_key_encoding": _join_extension(
            "default", None if separator is None else {"separator": separator}
        ),
        **({} if fill_value is NO_FILL_VALUE else {"fill_value": fill_value}),
        "codecs": list(array.codecs),
        "attributes": parts.attributes,
        **({} if names is None else {"dimension_names": list(names)}),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": list(array.storage_transformers),
    }


def refuse_feature(feature: str, key: str, generation: Generation) -> Never:
    """Raise: a document uses a feature that the generation has no word for."""
    raise unsupported_error(feature, generation, file=key)


def reject_document(problem: str, key: str) -> Never:
    """Raise: a document is not valid Zarr metadata."""
    raise InvalidInputError(
        f"{key}: {problem}; nothing was stored", kind=ErrorKind.INVALID_ARRAY_METADATA
    )


def _join_extension(name: str, configuration: dict[str, Any] | None) -> dict[str, Any]:
    return {"name": name} | ({} if configuration is None else {"configuration": configuration})


@dataclass(frozen=True, slots=True)
class _Splitter:
    key: str
    generation: Generation

    def split(self, document: dict[str, Any]) -> NodeParts:
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
        data_type, configuration = self._read_extension(document.get("data_type"), "data type")
        for name in names or ():
            self._require_unicode(name or "")
        return ArrayParts(
            tuple(shape),
            _join_extension(data_type, configuration) if configuration else data_type,
            chunk_shape,
            self._read_separator(document.get("chunk_key_encoding")),
            document.get("fill_value", NO_FILL_VALUE),
            self._read_extensions(document.get("codecs"), "codec"),
            None if names is None else tuple(names),
            self._read_extensions(document.get("storage_transformers"), "storage transformer"),
        )

    def _read_chunk_shape(self, grid: Any) -> tuple[int, ...]:
        name, configuration = self._read_extension(grid, "chunk grid")
        if name != "regular" or not (configuration or {}).keys() <= {"chunk_shape"}:
            self._refuse(f"the chunk grid {grid!r:.80}")
        chunk_shape = (configuration or {}).get("chunk_shape")
        if not isinstance(chunk_shape, list):
            self._reject(f"the chunk shape {chunk_shape!r:.80} is not a list")
        return tuple(chunk_shape)

    def _read_separator(self, value: Any) -> str | None:
        name, configuration = self._read_extension(value, "chunk key encoding")
        configuration = configuration or {}
        separator = configuration.get("separator")
        if (
            name != "default"
            or not configuration.keys() <= {"separator"}
            or separator not in (None, "/", ".")
        ):
            self._refuse(f"the chunk key encoding {value!r:.80}")
        return None if separator is None else str(separator)

    def _read_extensions(self, values: Any, label: str) -> tuple[dict[str, Any], ...]:
        if values is None:
            return ()
        if not isinstance(values, list):
            self._reject(f"{label}s {values!r:.80} is not a list")
        return tuple(_join_extension(*self._read_extension(value, label)) for value in values)

    def _read_extension(self, value: Any, label: str) -> tuple[str, dict[str, Any] | None]:
        """Return the name and configuration of an extension; a name alone is an extension, too."""
        extension = {"name": value} if isinstance(value, str) else value
        name = extension.get("name") if isinstance(extension, dict) else None
        if not isinstance(name, str):
            self._reject(f"the {label} {value!r:.80} is neither a name nor an object with a name")
        self._require_unicode(name)
        # Readers may ignore an extension only if `must_understand` is false.
        if extension.keys() - {"name", "configuration", "must_understand"} or not extension.get(
            "must_understand", True
        ):
            self._refuse(f"the {label} {value!r:.80} with members besides name and configuration")
        configuration = extension.get("configuration")
        if configuration is not None and not isinstance(configuration, dict):
            self._reject(f"the configuration of the {label} {value!r:.80} is not an object")
        return name, configuration

    def _require_unicode(self, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            self._reject(f"the name {name!r:.80} has a lone surrogate")

    def _refuse(self, feature: str) -> Never:
        refuse_feature(feature, self.key, self.generation)

    def _reject(self, problem: str) -> Never:
        reject_document(problem, self.key)
