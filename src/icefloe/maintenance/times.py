"""Times that callers give."""

from __future__ import annotations

from datetime import datetime

from icefloe.errors import ErrorKind, InvalidInputError


def require_time_zone(name: str, value: datetime) -> datetime:
    """Refuse a time that may mean another one elsewhere: what is deleted stays deleted."""
    if not isinstance(value, datetime):
        raise InvalidInputError(
            f"{name} is a datetime, not {value!r}: write datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInputError(
            f"{name}={value.isoformat()} has no time zone: write "
            "datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    return value
