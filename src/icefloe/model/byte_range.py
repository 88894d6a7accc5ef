"""Byte ranges of chunks and objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError


def _make_error(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=ErrorKind.INVALID_BYTE_RANGE)


@dataclass(frozen=True, slots=True)
class Bounded:
    """The bytes ``[start, end)``."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise _make_error(f"byte range: expected 0 <= start <= end, got {self}")


@dataclass(frozen=True, slots=True)
class From:
    """All bytes from ``start`` to the end."""

    start: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise _make_error(f"the start of a byte range must not be negative: {self}")


@dataclass(frozen=True, slots=True)
class Last:
    """The last ``length`` bytes, or all bytes of a shorter object."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise _make_error(f"the length of a byte range must not be negative: {self}")


@dataclass(frozen=True, slots=True)
class Until:
    """All bytes except the last ``skipped``."""

    skipped: int

    def __post_init__(self) -> None:
        if self.skipped < 0:
            raise _make_error(f"the number of skipped bytes must not be negative: {self}")


ByteRange: TypeAlias = Bounded | From | Last | Until


def resolve(byte_range: ByteRange | None, size: int) -> Bounded:
    """Return the bounded form of a byte range of an object of ``size`` bytes; None means all.

    Raises `InvalidInputError` for a range beyond the end; `Last` is clipped instead.
    """
    match byte_range:
        case None:
            return Bounded(0, size)
        case Bounded(start, end):
            if end > size:
                raise _make_error(f"bytes {start} to {end} exceed the object of {size} bytes")
            return byte_range
        case From(start):
            if start > size:
                raise _make_error(f"byte {start} is after the end of the object of {size} bytes")
            return Bounded(start, size)
        case Last(length):
            return Bounded(max(0, size - length), size)
        case Until(skipped):
            if skipped > size:
                raise _make_error(f"cannot skip {skipped} of the object's {size} bytes")
            return Bounded(0, size - skipped)
