"""Checks that the file of a virtual chunk is unchanged (Icechunk spec, "Virtual chunks").

Requests have preconditions, so that a server does not send a modified file. Some servers ignore
them, so every response is compared as well. Pure, no I/O.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from icefloe.errors import ErrorKind, StorageError
from icefloe.model.chunk_payload import Checksum, ETag, LastModified
from icefloe.storage.read_condition import ReadCondition

_UNKNOWN_TIME: Final = datetime.fromtimestamp(0, UTC)
"""Modification time that obstore reports if a web server sends none."""


def make_read_condition(checksum: Checksum) -> ReadCondition:
    """Return the precondition of a request."""
    match checksum:
        case ETag(value) if value.startswith("W/"):
            # If-Match uses strong comparison, which never matches a weak tag.
            return ReadCondition()
        case ETag(value):
            return ReadCondition(if_match=f'"{_strip_etag(value)}"')
        case LastModified(seconds):
            return ReadCondition(if_unmodified_since=datetime.fromtimestamp(seconds, UTC))


def matches_checksum(checksum: Checksum, etag: str | None, last_modified: datetime) -> bool:
    """Return whether a file is unchanged; an unknown modification time matches.

    Times are compared in whole seconds, the resolution of a stored checksum.
    """
    match checksum:
        case ETag(value):
            return etag is not None and _strip_etag(etag) == _strip_etag(value)
        case LastModified(seconds):
            return int(last_modified.timestamp()) <= seconds


def modified_error(
    label: str, checksum: Checksum, etag: str | None, last_modified: datetime | None
) -> StorageError:
    """Return the error for a file that changed since it was referenced."""
    match checksum:
        case ETag(value):
            expected = f"its ETag was {_strip_etag(value)!r}"
            actual = "unknown" if etag is None else repr(_strip_etag(etag))
        case LastModified(seconds):
            time = datetime.fromtimestamp(seconds, UTC)
            expected = f"it was last modified by {_format_time(time)}"
            actual = "unknown" if last_modified is None else _format_time(last_modified)
    return StorageError(
        f"{label}: the file of a virtual chunk has changed since the chunk was referenced: "
        f"{expected}, and is now {actual}; update the reference, or restore the file",
        kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
    )


def _strip_etag(etag: str) -> str:
    """Remove the quotes and the weak prefix ``W/``, which not all servers and writers include."""
    etag = etag.removeprefix("W/")
    return etag[1:-1] if len(etag) > 1 and etag[0] == etag[-1] == '"' else etag


def _format_time(time: datetime) -> str:
    return "unknown" if time == _UNKNOWN_TIME else f"{time:%Y-%m-%d %H:%M:%S} UTC"
