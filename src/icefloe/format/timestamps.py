"""Codec of timestamps: microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from icefloe.errors import FormatError, InvalidInputError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def from_microseconds(value: int, file: str) -> datetime:
    """Decode a timestamp."""
    if value > _MAX:
        raise FormatError(f"has the timestamp {value} µs, after the year 9999", file=file)
    return _EPOCH + timedelta(microseconds=int(value))


def to_microseconds(value: datetime) -> int:
    """Encode a time; raise `InvalidInputError` if it has no time zone or is before 1970."""
    if value.tzinfo is None or value < _EPOCH:
        raise InvalidInputError(f"{value!r} must have a time zone and must not be before 1970")
    return (value - _EPOCH) // _MICROSECOND
