"""Codec of the ref files of generation v1 (Icechunk spec, "Reference Files")."""

from __future__ import annotations

import json

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.json_text import parse_extended_json
from icefloe.model.ids import SnapshotId

MAX_REF_SIZE = 1 << 16


def decode_ref(data: bytes | memoryview, file: str) -> SnapshotId:
    """Decode the snapshot id of a branch or tag."""
    if len(data) > MAX_REF_SIZE:
        raise FormatError(f"{len(data)} bytes exceed the limit of {MAX_REF_SIZE}", file=file)
    content = parse_extended_json(bytes(data), "ref", file)
    snapshot = content.get("snapshot") if isinstance(content, dict) else None
    if not isinstance(snapshot, str):
        raise FormatError('expected the content {"snapshot": "<id>"}', file=file)
    try:
        return SnapshotId.parse(snapshot)
    except InvalidInputError as error:
        raise FormatError(error.message, file=file) from error


def encode_ref(snapshot_id: SnapshotId) -> bytes:
    """Encode a ref file."""
    return json.dumps({"snapshot": str(snapshot_id)}, separators=(",", ":")).encode()
