"""Attributes files: the attributes of several nodes (``docs/format/sequence.md``).

A file is ``{"attributes": [...]}``; the ``location`` of a reference is an index of this list. An
item is an object, or a string with the JSON text of an object if that text has ``NaN`` or
``Infinity``, which Zarr libraries write and JSON does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.format import attributes_files
from icefloe.format.generation import SEQUENCE
from icefloe.format.json_text import (
    format_extended_json,
    format_json,
    parse_extended_json,
    parse_json,
)
from icefloe.format.sequence.json_document import Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.ids import AttributesId
    from icefloe.model.snapshot import Snapshot


def place_attributes(snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
    """Put large attributes that are in no file yet into one new file; equal ones share an item."""
    return attributes_files.place_attributes(
        snapshot, SEQUENCE, encode_row=_encode_item, encode_file=_encode_file
    )


def decode_attributes(
    data: bytes | memoryview,
    file: str,
    attributes_id: AttributesId,  # noqa: ARG001 - the files do not have their ids
) -> list[dict[str, Any]]:
    """Decode an attributes file."""
    reader = Reader(file)
    content = reader.read_object(parse_json(data, file), "the content")
    items = reader.read_list(reader.get_member(content, "attributes", "the file"), "attributes")
    return [_decode_item(item, reader) for item in items]


def _encode_item(attributes: dict[str, Any]) -> bytes:
    try:
        return format_json(attributes)
    except ValueError:
        return format_json(format_extended_json(attributes).decode())


def _encode_file(attributes_id: AttributesId, items: list[bytes]) -> bytes:  # noqa: ARG001
    return b'{"attributes":[' + b",".join(items) + b"]}"


def _decode_item(item: Any, reader: Reader) -> dict[str, Any]:
    if isinstance(item, str):
        item = parse_extended_json(item, "attributes", reader.file)
    return reader.read_object(item, "attributes")
