"""Codec of the reference files of the generation ``sequence`` (``docs/format/sequence.md``).

A file has the schema ``RefData`` of the specification. Two of the ``properties`` have a meaning:
``deleted``, which marks the end of a branch, and ``parents``, the new parents of snapshots whose
ancestors expired. Others are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.json_text import format_json, parse_json
from icefloe.format.sequence.json_document import Reader, format_id, format_time
from icefloe.model.ids import SnapshotId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

MAX_REF_SIZE: Final = 4 * 1024 * 1024
"""The largest reference file in bytes, enough for 70,000 entries of ``parents``."""

_DELETED, _PARENTS = "deleted", "parents"


@dataclass(frozen=True, slots=True)
class RefData:
    """The content of a reference file.

    Parameters
    ----------
    snapshot_id
        The snapshot that the branch or tag points at.
    timestamp
        When the file was made.
    is_deleted
        Whether the branch ends with this file.
    parents
        Only in files of the branch main: the parents of snapshots whose recorded parents expired.
    """

    snapshot_id: SnapshotId
    timestamp: datetime
    is_deleted: bool = False
    parents: Mapping[SnapshotId, SnapshotId] = field(default_factory=dict, hash=False)


def encode_ref(ref: RefData) -> bytes:
    """Encode a reference file."""
    properties: dict[str, Any] = {}
    if ref.is_deleted:
        properties[_DELETED] = True
    if ref.parents:
        properties[_PARENTS] = {
            str(child): str(ref.parents[child]) for child in sorted(ref.parents)
        }
    data = format_json(
        {
            "properties": properties,
            "snapshot": format_id(ref.snapshot_id),
            "timestamp": format_time(ref.timestamp),
        }
    )
    if len(data) > MAX_REF_SIZE:
        raise InvalidInputError(
            f"a reference file cannot have {len(data)} bytes: the limit is {MAX_REF_SIZE}; "
            "too many branches and tags have expired ancestors"
        )
    return data


def decode_ref(data: bytes | memoryview, file: str) -> RefData:
    """Decode a reference file."""
    if len(data) > MAX_REF_SIZE:
        raise FormatError(f"{len(data)} bytes exceed the limit of {MAX_REF_SIZE}", file=file)
    reader = Reader(file)
    content = reader.read_object(parse_json(data, file), "the file")
    properties, snapshot, timestamp = (
        reader.get_member(content, name, "the file")
        for name in ("properties", "snapshot", "timestamp")
    )
    properties = reader.read_object(properties, "'properties'")
    is_deleted = properties.get(_DELETED, False)
    if not isinstance(is_deleted, bool):
        reader.fail(f"the property {_DELETED!r} must be a boolean, got {is_deleted!r:.80}")
    parents = reader.read_object(properties.get(_PARENTS, {}), f"the property {_PARENTS!r}")
    return RefData(
        reader.read_id(snapshot, SnapshotId, "'snapshot'"),
        reader.read_time(timestamp, "'timestamp'"),
        is_deleted,
        {
            reader.parse_id(child, SnapshotId, f"a name in {_PARENTS!r}"): reader.parse_id(
                parent, SnapshotId, f"a value in {_PARENTS!r}"
            )
            for child, parent in parents.items()
        },
    )
