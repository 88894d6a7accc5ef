"""Attributes files: the attributes of several nodes (``docs/format/sequence.md``).

A file is ``{"attributes": [...]}``; the ``location`` of a reference is an index of this list. An
item is an object, or a string with the JSON text of an object if that text has ``NaN`` or
``Infinity``, which Zarr libraries write and JSON does not have.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.sequence.json_document import (
    ID_SIZE,
    Reader,
    format_extended_json,
    format_json,
    parse_json,
)
from icefloe.format.zarr_document import split_document
from icefloe.model.ids import AttributesId
from icefloe.model.node import AttributesRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.metadata_codec import FetchAttributes
    from icefloe.model.snapshot import Snapshot

ATTRIBUTES_THRESHOLD_BYTES: Final = 4096
"""Longer attributes are stored in attributes files, encoded as JSON."""

MAX_ATTRIBUTES_BYTES: Final = 1 << 30
"""The maximum size of the attributes of a snapshot that are in attributes files.

Nodes can share an item, so the size of the files does not limit the memory of a reader.
"""


def place_attributes(snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
    """Put large attributes that are in no file yet into one new file; equal ones share an item."""
    rows: dict[bytes, int] = {}
    places: dict[int, int] = {}
    for index, node in enumerate(snapshot.nodes):
        if node.attributes_ref is None and _may_need_file(node.user_data):
            attributes = split_document(node.user_data, node.path.value, "sequence").attributes
            item = encode_item(attributes)
            if item.startswith(b'"') or len(item) > ATTRIBUTES_THRESHOLD_BYTES:
                places[index] = rows.setdefault(item, len(rows))
    _require_bounded_size(snapshot, places)
    if not rows:
        return snapshot, {}
    attributes_id = AttributesId.random(ID_SIZE)
    nodes = tuple(
        replace(node, attributes_ref=AttributesRef(attributes_id, places[index]))
        if index in places
        else node
        for index, node in enumerate(snapshot.nodes)
    )
    return replace(snapshot, nodes=nodes), {attributes_id: encode_attributes(list(rows))}


def encode_item(attributes: dict[str, Any]) -> bytes:
    """Encode the attributes of a node, as an object or as a string."""
    try:
        return format_json(attributes)
    except ValueError:
        return format_json(format_extended_json(attributes).decode())


def encode_attributes(items: list[bytes]) -> bytes:
    """Encode an attributes file of encoded items."""
    return b'{"attributes":[' + b",".join(items) + b"]}"


def decode_attributes(data: bytes | memoryview, file: str) -> list[dict[str, Any]]:
    """Decode an attributes file."""
    reader = Reader(file)
    content = reader.read_object(parse_json(data, file), "the content")
    items = reader.read_list(reader.get_member(content, "attributes", "the file"), "attributes")
    return [_decode_item(item, reader) for item in items]


class AttributesLoader:
    """Fetches the attributes files of a snapshot, each once."""

    def __init__(self, fetch: FetchAttributes) -> None:
        self._fetch = fetch
        self._files: dict[AttributesId, tuple[str, list[dict[str, Any]]]] = {}

    def load(self, ref: AttributesRef) -> dict[str, Any]:
        """Return the attributes at a place."""
        if ref.id not in self._files:
            file, data = self._fetch(ref.id)
            self._files[ref.id] = file, decode_attributes(data, file)
        file, items = self._files[ref.id]
        if ref.row >= len(items):
            raise FormatError(
                f"has the attributes of {len(items)} nodes, none at {ref.row}", file=file
            )
        return items[ref.row]


def _may_need_file(user_data: bytes) -> bool:
    return (
        len(user_data) > ATTRIBUTES_THRESHOLD_BYTES
        or b"NaN" in user_data
        or b"Infinity" in user_data
    )


def _require_bounded_size(snapshot: Snapshot, places: dict[int, int]) -> None:
    """Raise if a reader would refuse the snapshot."""
    total = sum(
        len(node.user_data)
        for index, node in enumerate(snapshot.nodes)
        if node.attributes_ref is not None or index in places
    )
    if total > MAX_ATTRIBUTES_BYTES:
        raise FormatError(
            f"the large attributes of all nodes have {total} bytes, more than the limit of "
            f"{MAX_ATTRIBUTES_BYTES}; store them as arrays",
            kind=ErrorKind.SERIALIZATION,
        )


def _decode_item(item: Any, reader: Reader) -> dict[str, Any]:
    if isinstance(item, str):
        try:
            item = json.loads(item)
        except (ValueError, RecursionError) as error:
            reader.fail(f"has attributes that are not valid JSON ({error})")
    return reader.read_object(item, "attributes")
