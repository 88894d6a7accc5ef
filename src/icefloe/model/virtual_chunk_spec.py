"""Virtual chunk references as users pass them to a session."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import SupportsIndex

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import MAX_U32, MAX_U64
from icefloe.url_secrets import masked_repr


@masked_repr
@dataclass(frozen=True, slots=True, init=False)
class VirtualChunkSpec:
    """A chunk index of an array, and the byte range of a file with the chunk.

    Attributes
    ----------
    index
        The coordinates of the chunk in the chunk grid.
    location
        The URL of the file.
    offset, length
        The byte range in the file.
    etag_checksum, last_updated_at_checksum
        Expected version of the file, checked on reads; the time must have a time zone.

    Raises
    ------
    InvalidInputError
        If a number is out of range, or the time has no time zone.
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
            raise _reference_error("VirtualChunkSpec: last_updated_at_checksum has no time zone")
        numbers = tuple(_parse(part, MAX_U32, "index") for part in index)
        object.__setattr__(self, "index", numbers)
        object.__setattr__(self, "location", location)
        object.__setattr__(self, "offset", _parse(offset, MAX_U64, "offset"))
        object.__setattr__(self, "length", _parse(length, MAX_U64, "length"))
        object.__setattr__(self, "etag_checksum", etag_checksum)
        object.__setattr__(self, "last_updated_at_checksum", last_updated_at_checksum)


def parse_unsigned(number: SupportsIndex, maximum: int, name: str) -> int:
    """Return an integer, also one of numpy; raise `InvalidInputError` for other values.

    Booleans are refused as well.
    """
    try:
        integer = operator.index(number)
    except TypeError:
        integer = None
    if integer is None or isinstance(number, bool):
        raise _reference_error(f"{name}: expected an integer, got a {type(number).__qualname__}")
    if not 0 <= integer <= maximum:
        raise _reference_error(f"{name}: {integer} is not between 0 and {maximum}")
    return integer


def _parse(number: SupportsIndex, maximum: int, name: str) -> int:
    return parse_unsigned(number, maximum, f"VirtualChunkSpec: {name}")


def _reference_error(reason: str) -> InvalidInputError:
    return InvalidInputError(reason, kind=ErrorKind.INVALID_VIRTUAL_REF)
