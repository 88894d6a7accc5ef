"""Codec of the reference files of the generation ``sequence`` (``docs/format/sequence.md``).

A file has the schema ``RefData`` of the specification. Two of the ``properties`` have a meaning:
``deleted``, which marks the end of a branch, and ``parents``, the new parents of snapshots whose
ancestors expired. Others are ignored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.generation import SEQUENCE
from icefloe.model.ids import SnapshotId

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REF_SIZE: Final = 4 * 1024 * 1024
"""The largest reference file in bytes, enough for 70,000 entries of ``parents``."""

_DELETED, _PARENTS = "deleted", "parents"
_DATE_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"([Zz]|[-+][0-9]{2}:[0-9]{2})"
)


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
    timestamp = ref.timestamp.astimezone(UTC).isoformat(timespec="microseconds")
    content = {
        "properties": properties,
        "snapshot": list(ref.snapshot_id.raw),
        "timestamp": timestamp.replace("+00:00", "Z"),
    }
    data = json.dumps(content, separators=(",", ":")).encode()
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
    try:
        content = json.loads(bytes(data).decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not valid JSON ({error})", file=file) from error
    if not isinstance(content, dict):
        raise FormatError("expected a JSON object", file=file)
    for name in ("properties", "snapshot", "timestamp"):
        if name not in content:
            raise FormatError(f"{name!r} is missing", file=file)
    properties = content["properties"]
    if not isinstance(properties, dict):
        raise FormatError("'properties' is not an object", file=file)
    is_deleted = properties.get(_DELETED, False)
    if not isinstance(is_deleted, bool):
        raise FormatError("the property 'deleted' is not a boolean", file=file)
    return RefData(
        _decode_id(content["snapshot"], file),
        _decode_time(content["timestamp"], file),
        is_deleted,
        _decode_parents(properties.get(_PARENTS, {}), file),
    )


def _decode_id(value: object, file: str) -> SnapshotId:
    # `type`, because JSON's true is an int in Python.
    if (
        not isinstance(value, list)
        or len(value) != SEQUENCE.id_size
        or not all(type(byte) is int and 0 <= byte <= 255 for byte in value)
    ):
        raise FormatError(
            f"'snapshot' is not a list of {SEQUENCE.id_size} integers from 0 to 255", file=file
        )
    return SnapshotId(bytes(value))


def _decode_time(value: object, file: str) -> datetime:
    match = _DATE_TIME.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        date, time, fraction, zone = match.groups()
        text = f"{date}T{time}.{(fraction or '')[:6].ljust(6, '0')}{zone.upper()}"
        try:
            return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise FormatError("'timestamp' is not an RFC 3339 date and time with a time zone", file=file)


def _decode_parents(value: object, file: str) -> dict[SnapshotId, SnapshotId]:
    if not isinstance(value, dict):
        raise FormatError("the property 'parents' is not an object", file=file)
    parents = {}
    for child, parent in value.items():
        try:
            ids = SnapshotId.parse(child), SnapshotId.parse(parent)
        except InvalidInputError as error:
            raise FormatError(f"the property 'parents': {error.message}", file=file) from error
        if any(len(snapshot_id.raw) != SEQUENCE.id_size for snapshot_id in ids):
            raise FormatError("the property 'parents' has an id of the wrong size", file=file)
        parents[ids[0]] = ids[1]
    return parents
