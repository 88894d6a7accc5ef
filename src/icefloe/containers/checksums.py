"""Whether the file of a virtual chunk is unchanged (Icechunk spec, "Virtual chunks").

Servers are asked to check as well, which avoids the transfer, but some ignore conditions, so every
response is compared here too. Pure, no I/O.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from icefloe.errors import ErrorKind, StorageError
from icefloe.model.chunk_payload import Checksum, ETag, LastModified
from icefloe.storage.read_condition import ReadCondition

_UNKNOWN_TIME: Final = datetime.fromtimestamp(0, UTC)
"""Modification time of files on web servers that report none."""


def read_condition_for(checksum: Checksum) -> ReadCondition:
    """Return the precondition to send to a server."""
    match checksum:
        case ETag(value) if value.startswith("W/"):
            # A condition compares strongly, so a weak tag never matches.
            return ReadCondition()
        case ETag(value):
            return ReadCondition(if_match=f'"{_bare(value)}"')
        case LastModified(seconds):
            return ReadCondition(if_unmodified_since=datetime.fromtimestamp(seconds, UTC))


def matches_checksum(checksum: Checksum, etag: str | None, last_modified: datetime) -> bool:
    """Return whether a file is unchanged; an unknown modification time matches.

    Times are compared in whole seconds, the resolution of a reference.
    """
    match checksum:
        case ETag(value):
            return etag is not None and _bare(etag) == _bare(value)
        case LastModified(seconds):
            return int(last_modified.timestamp()) <= seconds


def modified_error(
    shown: str, checksum: Checksum, etag: str | None, last_modified: datetime | None
) -> StorageError:
    """Return the error for a file that changed since it was referenced."""
    match checksum:
        case ETag(value):
            expected = f"its ETag was {_bare(value)!r}"
            found = "unknown" if etag is None else repr(_bare(etag))
        case LastModified(seconds):
            time = datetime.fromtimestamp(seconds, UTC)
            expected = f"it was last modified by {_format_time(time)}"
            found = "unknown" if last_modified is None else _format_time(last_modified)
    return StorageError(
        f"{shown}: the file of a virtual chunk has changed since the chunk was referenced: "
        f"{expected}, and is now {found}; update the reference, or restore the file",
        kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
    )


def _bare(etag: str) -> str:
    """Strip the quotes and the weakness mark, which are optional in practice."""
    etag = etag.removeprefix("W/")
    return etag[1:-1] if len(etag) > 1 and etag[0] == etag[-1] == '"' else etag


def _format_time(time: datetime) -> str:
    return "unknown" if time == _UNKNOWN_TIME else f"{time:%Y-%m-%d %H:%M:%S} UTC"
