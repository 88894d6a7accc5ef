"""Which bytes of a chunk or an object to read (seed `000`, ByteRange)."""

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
        _require(0 <= self.start <= self.end, f"a byte range must not run backwards: {self}")


@dataclass(frozen=True, slots=True)
class From:
    """All bytes from ``start`` to the end."""

    start: int

    def __post_init__(self) -> None:
        _require(self.start >= 0, f"a byte range starts at 0 or later: {self}")


@dataclass(frozen=True, slots=True)
class Last:
    """The last ``length`` bytes, or all of them where there are fewer."""

    length: int

    def __post_init__(self) -> None:
        _require(self.length >= 0, f"a byte range has 0 bytes or more: {self}")


@dataclass(frozen=True, slots=True)
class Until:
    """All bytes except the last ``skipped``."""

    skipped: int

    def __post_init__(self) -> None:
        _require(self.skipped >= 0, f"a byte range leaves out 0 bytes or more: {self}")


ByteRange: TypeAlias = Bounded | From | Last | Until


def resolve(byte_range: ByteRange | None, size: int) -> Bounded:
    """Turn a byte range into the bounded one it means in ``size`` bytes; None means all.

    A range that reaches past the end raises, except `Last`, which takes what there is.
    """
    match byte_range:
        case None:
            return Bounded(0, size)
        case Bounded(start, end):
            _require(end <= size, f"bytes {start} to {end} asked of an object of {size} bytes")
            return byte_range
        case From(start):
            _require(start <= size, f"bytes from {start} asked of an object of {size} bytes")
            return Bounded(start, size)
        case Last(length):
            return Bounded(max(0, size - length), size)
        case Until(skipped):
            _require(skipped <= size, f"all but {skipped} bytes of an object of {size} bytes")
            return Bounded(0, size - skipped)
