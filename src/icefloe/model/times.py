"""Validation of times given by callers."""

from __future__ import annotations

from datetime import datetime

from icefloe.errors import ErrorKind, InvalidInputError


def require_time_zone(name: str, value: datetime) -> datetime:
    """Return a time, or raise if it has no time zone: what it selects may be deleted."""
    if not isinstance(value, datetime):
        raise InvalidInputError(
            f"{name} must be a datetime, not {value!r}: write datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInputError(
            f"{name}={value.isoformat()} has no time zone: write "
            "datetime(..., tzinfo=timezone.utc)",
            kind=ErrorKind.INVALID_REF_TYPE,
        )
    return value
