"""A virtual chunk as a caller describes it, before it is a reference in a manifest.

Whether a container holds the location is for the session that takes the description to say.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import SupportsIndex

from icefloe.errors import ErrorKind, InvalidInputError

_MAX_INDEX = 2**32 - 1
_MAX_POSITION = 2**64 - 1


@dataclass(frozen=True, slots=True, init=False)
class VirtualChunkSpec:
    """Which bytes of which file are the chunk at an index of an array.

    Attributes
    ----------
    index
        The position of the chunk in the grid of chunks.
    location
        The URL of the file.
    offset, length
        The bytes of the file.
    etag_checksum, last_updated_at_checksum
        What the file must still be when the chunk is read; the time has a time zone.

    Raises
    ------
    InvalidInputError
        If a number is not one that the format holds, or the time has no time zone.
    """

    index: tuple[int, ...]
    location: str
    offset: int
    length: int
    etag_checksum: str | None
    last_updated_at_checksum: datetime | None

    def __init__(  # noqa: PLR0917 - Icechunk's order
        self,
        index: Iterable[SupportsIndex],
        location: str,
        offset: SupportsIndex,
        length: SupportsIndex,
        etag_checksum: str | None = None,
        last_updated_at_checksum: datetime | None = None,
    ) -> None:
        if last_updated_at_checksum is not None and last_updated_at_checksum.tzinfo is None:
            raise _unfit("last_updated_at_checksum has no time zone, so it names no moment")
        numbers = tuple(_within(part, _MAX_INDEX, "index") for part in index)
        object.__setattr__(self, "index", numbers)
        object.__setattr__(self, "location", location)
        object.__setattr__(self, "offset", _within(offset, _MAX_POSITION, "offset"))
        object.__setattr__(self, "length", _within(length, _MAX_POSITION, "length"))
        object.__setattr__(self, "etag_checksum", etag_checksum)
        object.__setattr__(self, "last_updated_at_checksum", last_updated_at_checksum)


def _within(number: SupportsIndex, largest: int, name: str) -> int:
    try:
        plain = operator.index(number)  # also numpy's integers, which arrays of references hold
    except TypeError as error:
        raise _unfit(f"{name}: an integer is needed, not a {type(number).__qualname__}") from error
    if not 0 <= plain <= largest:
        raise _unfit(f"{name}: {plain} is not between 0 and {largest}")
    return plain


def _unfit(reason: str) -> InvalidInputError:
    return InvalidInputError(f"VirtualChunkSpec: {reason}", kind=ErrorKind.INVALID_VIRTUAL_REF)
