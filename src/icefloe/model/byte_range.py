"""Byte ranges of chunks and objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise InvalidInputError(message, kind=ErrorKind.INVALID_BYTE_RANGE)


@dataclass(frozen=True, slots=True)
class Bounded:
    """The bytes ``[start, end)``."""

    start: int
    end: int

    def __post_init__(self) -> None:
        _require(0 <= self.start <= self.end, f"a byte range must not end before it starts: {self}")


@dataclass(frozen=True, slots=True)
class From:
    """All bytes from ``start`` to the end."""

    start: int

    def __post_init__(self) -> None:
        _require(self.start >= 0, f"a byte range must not start below 0: {self}")


@dataclass(frozen=True, slots=True)
class Last:
    """The last ``length`` bytes, or all if there are fewer."""

    length: int

    def __post_init__(self) -> None:
        _require(self.length >= 0, f"a byte range must not have a negative length: {self}")


@dataclass(frozen=True, slots=True)
class Until:
    """All bytes except the last ``skipped``."""

    skipped: int

    def __post_init__(self) -> None:
        _require(self.skipped >= 0, f"a byte range must not skip a negative length: {self}")


ByteRange: TypeAlias = Bounded | From | Last | Until


def resolve(byte_range: ByteRange | None, size: int) -> Bounded:
    """Return a byte range of ``size`` bytes as a bounded one; None means all.

    A range beyond the end raises, except `Last`, which is clipped.
    """
    match byte_range:
        case None:
            return Bounded(0, size)
        case Bounded(start, end):
            _require(end <= size, f"bytes {start} to {end} exceed an object of {size} bytes")
            return byte_range
        case From(start):
            _require(start <= size, f"bytes from {start} exceed an object of {size} bytes")
            return Bounded(start, size)
        case Last(length):
            return Bounded(max(0, size - length), size)
        case Until(skipped):
            _require(skipped <= size, f"all but {skipped} bytes exceed an object of {size} bytes")
            return Bounded(0, size - skipped)
