"""Reference files of generation v1 (seed `003`, Reference Files): ``{"snapshot": "…"}``."""

from __future__ import annotations

import json

from icefloe.errors import FormatError, InvalidInputError
from icefloe.model.ids import SnapshotId

MAX_REF_SIZE = 1 << 16


def decode_ref(data: bytes | memoryview, file: str) -> SnapshotId:
    """Read the snapshot that a branch or a tag points at."""
    if len(data) > MAX_REF_SIZE:
        raise FormatError(f"{len(data)} bytes are too many for a reference file", file=file)
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is not JSON ({error})", file=file) from error
    snapshot = content.get("snapshot") if isinstance(content, dict) else None
    if not isinstance(snapshot, str):
        raise FormatError(
            'a reference file holds {"snapshot": "<id>"}; this one does not', file=file
        )
    try:
        return SnapshotId.parse(snapshot)
    except InvalidInputError as error:
        raise FormatError(error.message, file=file) from error


def encode_ref(snapshot_id: SnapshotId) -> bytes:
    """Write a reference file."""
    return json.dumps({"snapshot": str(snapshot_id)}, separators=(",", ":")).encode()
