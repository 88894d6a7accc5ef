"""Ids of everything a repository stores (seed `000`, Content-Addressable IDs).

An id is random bytes, never derived from content. In paths and for people it is written in
Crockford base 32, upper case, without padding; the spare bits on the right are zero. Each kind of
object has its own type, so that a chunk's id cannot be passed for a manifest's.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from functools import total_ordering
from typing import ClassVar, Self

from icefloe.errors import ErrorKind, InvalidInputError

_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RFC4648 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = [chr(one) + chr(other) for one in _CROCKFORD for other in _CROCKFORD]
# By the size of an id: the zero bits behind it, where each ten bits begin, the length of the text.
_PLACES = {
    8: (6, tuple(range(60, -1, -10)), 13),
    12: (4, tuple(range(90, -1, -10)), 20),
}
# Crockford reads either case, O as 0, and I and L as 1. Every other byte becomes one that the
# decoder refuses: most bytes mean nothing, and some of them are letters of the other alphabet.
_FROM_CROCKFORD = bytearray(b"!" * 256)
for _digit, _letter in zip(_CROCKFORD, _RFC4648, strict=True):
    _FROM_CROCKFORD[_digit] = _FROM_CROCKFORD[ord(chr(_digit).lower())] = _letter
for _ambiguous, _meant in (("Oo", b"0"), ("IiLl", b"1")):
    for _character in _ambiguous:
        _FROM_CROCKFORD[ord(_character)] = _RFC4648[_CROCKFORD.index(_meant)]


@total_ordering
class ObjectId:
    """Random bytes that name one object; immutable, hashable, ordered by its bytes."""

    SIZE: ClassVar[int] = 12
    __slots__ = ("raw",)

    raw: bytes

    def __init__(self, raw: bytes) -> None:
        if len(raw) != self.SIZE:
            raise InvalidInputError(
                f"a {type(self).__name__} has {self.SIZE} bytes, not {len(raw)}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            )
        _set_raw(self, bytes(raw))

    @classmethod
    def random(cls) -> Self:
        """Make a new id, from the operating system's source of randomness."""
        return cls(secrets.token_bytes(cls.SIZE))

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read an id as it stands in paths; either case, and O, I, L as Crockford reads them."""
        length = _PLACES[cls.SIZE][2]
        try:
            if not isinstance(text, str) or len(text) != length:
                raise ValueError  # noqa: TRY301 - told below, with all else that is no id
            padded = text.encode("ascii").translate(bytes(_FROM_CROCKFORD)) + b"=" * (-length % 8)
            raw = base64.b32decode(padded)
            if base64.b32encode(raw) != padded:  # spare bits set: a second name for the same id
                raise ValueError  # noqa: TRY301
        except (ValueError, binascii.Error) as error:
            raise InvalidInputError(
                f"{text!r} is not a {cls.__name__}: expected {length} characters of Crockford "
                f"base 32, such as {cls(bytes(cls.SIZE))}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            ) from error
        return cls(raw)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self.raw,)

    def __str__(self) -> str:
        # Ten bits at a time: keys of chunks are made for every read, and `base64` is slow.
        spare, places, length = _PLACES[self.SIZE]
        number = int.from_bytes(self.raw, "big") << spare
        return "".join([_PAIRS[number >> place & 1023] for place in places])[:length]

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self}')"

    def __hash__(self) -> int:
        return hash(self.raw)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.raw == other.raw

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.raw < other.raw


# The slot's own setter: it does not go through `ObjectId.__setattr__`, which refuses.
_set_raw = ObjectId.__dict__["raw"].__set__


class SnapshotId(ObjectId):
    """Names a snapshot, that is a commit, and its transaction log."""

    __slots__ = ()


class ManifestId(ObjectId):
    """Names a manifest file."""

    __slots__ = ()


class ChunkId(ObjectId):
    """Names a chunk file."""

    __slots__ = ()


class AttributesId(ObjectId):
    """Names user-defined metadata attached to a node; reserved by the format."""

    __slots__ = ()


class NodeId(ObjectId):
    """Names a group or an array for as long as it exists, wherever it moves."""

    SIZE = 8
    __slots__ = ()


INITIAL_SNAPSHOT_ID = SnapshotId.parse("1CECHNKREP0F1RSTCMT0")
"""The id that the first snapshot of every repository has."""
