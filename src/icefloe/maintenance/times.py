"""Times that callers give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from datetime import datetime


def require_time_zone(name: str, value: datetime) -> datetime:
    """Refuse a time that may mean another one elsewhere: what is deleted stays deleted."""
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInputError(
            f"{name}={value.isoformat()} has no time zone: write "
            "datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    return value
