"""Whether a file is still the one that a virtual chunk was referenced in (seed `002`, Checksum).

Servers are asked to check as well, which spares the transfer, but some ignore conditions, so the
answer to every read is compared here too. Pure, no I/O.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from icefloe.errors import ErrorKind, StorageError
from icefloe.model.chunk_payload import Checksum, ETag, LastModified
from icefloe.storage.read_condition import ReadCondition

_UNKNOWN_TIME: Final = datetime.fromtimestamp(0, UTC)
"""What is told of files on web servers that do not say when they were changed."""


def read_condition_for(checksum: Checksum) -> ReadCondition:
    """Tell what to ask a server to check."""
    match checksum:
        case ETag(value) if value.startswith("W/"):
            # A condition compares strongly, so that no weak tag ever holds: not asked for.
            return ReadCondition()
        case ETag(value):
            return ReadCondition(if_match=f'"{_bare(value)}"')
        case LastModified(seconds):
            return ReadCondition(if_unmodified_since=datetime.fromtimestamp(seconds, UTC))


def matches_checksum(checksum: Checksum, etag: str | None, last_modified: datetime) -> bool:
    """Whether a file is as it was; an unknown time of change does not contradict.

    The time is compared in whole seconds, which is what a reference stores.
    """
    match checksum:
        case ETag(value):
            return etag is not None and _bare(etag) == _bare(value)
        case LastModified(seconds):
            return int(last_modified.timestamp()) <= seconds


def modified_error(
    shown: str, checksum: Checksum, etag: str | None, last_modified: datetime | None
) -> StorageError:
    """Say that a file is not the one that was referenced."""
    match checksum:
        case ETag(value):
            expected = f"its ETag was {_bare(value)!r}"
            found = "unknown" if etag is None else repr(_bare(etag))
        case LastModified(seconds):
            expected = f"it was last modified by {_shown(datetime.fromtimestamp(seconds, UTC))}"
            found = "unknown" if last_modified is None else _shown(last_modified)
    return StorageError(
        f"{shown}: the file of a virtual chunk has changed since the chunk was referenced: "
        f"{expected}, and is now {found}; reference it again, or bring the file back",
        kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
    )


def _bare(etag: str) -> str:
    """Take off the quotes and the mark of weakness, which not everybody writes down."""
    etag = etag.removeprefix("W/")
    return etag[1:-1] if len(etag) > 1 and etag[0] == etag[-1] == '"' else etag


def _shown(time: datetime) -> str:
    return "unknown" if time == _UNKNOWN_TIME else f"{time:%Y-%m-%d %H:%M:%S} UTC"
