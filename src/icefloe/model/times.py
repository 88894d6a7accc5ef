"""Validation of times from callers."""

from __future__ import annotations

from datetime import datetime

from icefloe.errors import ErrorKind, InvalidInputError


def require_time_zone(name: str, value: datetime) -> datetime:
    """Return a time, or raise if it has no time zone: times select data to delete."""
    if not isinstance(value, datetime):
        raise InvalidInputError(
            f"{name}: expected a datetime, got {value!r}; pass datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInputError(
            f"{name}={value.isoformat()} has no time zone: pass datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    return value
