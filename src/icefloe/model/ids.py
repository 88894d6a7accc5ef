"""Ids of the objects of a repository, one type per kind.

An id is bytes, independent of the content of the object. Its size depends on the generation of the
repository. Its text form is Crockford base 32, in upper case and without padding; the unused bits
at the end are zero.
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
_PAIRS = [chr(first) + chr(second) for first in _CROCKFORD for second in _CROCKFORD]
# By size of the id: the number of unused bits, the shift of each ten bits, the length of the text.
_TEXT_LAYOUTS = {
    8: (6, tuple(range(60, -1, -10)), 13),
    12: (4, tuple(range(90, -1, -10)), 20),
    16: (2, tuple(range(120, -1, -10)), 26),
}
# Crockford's decoding accepts both cases, O as 0, and I and L as 1. All other bytes, including
# letters of the RFC 4648 alphabet, are mapped to a byte that the decoder rejects.
_FROM_CROCKFORD = bytearray(b"!" * 256)
for _digit, _letter in zip(_CROCKFORD, _RFC4648, strict=True):
    _FROM_CROCKFORD[_digit] = _FROM_CROCKFORD[ord(chr(_digit).lower())] = _letter
for _aliases, _digit_text in (("Oo", b"0"), ("IiLl", b"1")):
    for _character in _aliases:
        _FROM_CROCKFORD[ord(_character)] = _RFC4648[_CROCKFORD.index(_digit_text)]


@total_ordering
class ObjectId:
    """An id of random bytes: immutable, hashable, ordered by its bytes.

    ``SIZE`` is the size in generations v1 and v2, ``SIZES`` are the sizes in all generations.
    """

    SIZE: ClassVar[int] = 12
    SIZES: ClassVar[tuple[int, ...]] = (12, 16)
    __slots__ = ("raw",)

    raw: bytes

    def __init__(self, raw: bytes) -> None:
        if type(raw) is not bytes and not isinstance(raw, bytes | bytearray | memoryview):
            raise InvalidInputError(
                f"expected the bytes of a {type(self).__name__}, got a {type(raw).__name__}; "
                f"{type(self).__name__}.parse reads its text",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            )
        if len(raw) not in self.SIZES:
            sizes = " or ".join(map(str, self.SIZES))
            raise InvalidInputError(
                f"expected a {type(self).__name__} of {sizes} bytes, got {len(raw)}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            )
        _set_raw(self, bytes(raw))

    @classmethod
    def random(cls, size: int | None = None) -> Self:
        """Make a new random id."""
        return cls(secrets.token_bytes(cls.SIZE if size is None else size))

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse the text form of an id; an id of this kind is returned unchanged.

        Raises `InvalidInputError` for other text, and for ids of another kind.
        """
        if type(text) is cls:
            return text
        lengths = [_TEXT_LAYOUTS[size][2] for size in cls.SIZES]
        try:
            if not isinstance(text, str) or len(text) not in lengths:
                raise ValueError  # noqa: TRY301 - reported below
            length = len(text)
            padded = text.encode("ascii").translate(bytes(_FROM_CROCKFORD)) + b"=" * (-length % 8)
            raw = base64.b32decode(padded)
            if base64.b32encode(raw) != padded:  # not canonical: unused bits are set
                raise ValueError  # noqa: TRY301
        except (ValueError, binascii.Error) as error:
            raise InvalidInputError(
                f"{text!r} is not a {cls.__name__}: expected {' or '.join(map(str, lengths))} "
                f"characters of Crockford base 32, such as {cls(bytes(cls.SIZE))}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            ) from error
        return cls(raw)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self.raw,)

    def __str__(self) -> str:
        # Ten bits at a time: every read formats the key of a chunk, and `base64` is slow.
        unused_bits, shifts, length = _TEXT_LAYOUTS[len(self.raw)]
        number = int.from_bytes(self.raw, "big") << unused_bits
        return "".join([_PAIRS[number >> shift & 1023] for shift in shifts])[:length]

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


# The setter of the slot bypasses `ObjectId.__setattr__`.
_set_raw = ObjectId.__dict__["raw"].__set__


class SnapshotId(ObjectId):
    """The id of a snapshot and of its transaction log."""

    __slots__ = ()


class ManifestId(ObjectId):
    """The id of a manifest file."""

    __slots__ = ()


class ChunkId(ObjectId):
    """The id of a chunk file."""

    __slots__ = ()


class AttributesId(ObjectId):
    """The id of an attributes file."""

    __slots__ = ()


class NodeId(ObjectId):
    """The id of a group or array; moving a node preserves its id.

    In generations that number nodes, it is the number, big-endian; until a new node has a number,
    its id is random with the first bit set.
    """

    SIZE = 8
    SIZES = (8,)
    __slots__ = ()

    @classmethod
    def from_number(cls, number: int) -> NodeId:
        """Return the id of the node with a number."""
        return cls(number.to_bytes(cls.SIZE, "big"))

    @classmethod
    def make_provisional(cls) -> NodeId:
        """Make an id for a new node that has no number yet."""
        raw = secrets.token_bytes(cls.SIZE)
        return cls(bytes([raw[0] | 0x80]) + raw[1:])

    @property
    def number(self) -> int:
        """The number of the node, in generations that number nodes."""
        return int.from_bytes(self.raw, "big")

    @property
    def is_provisional(self) -> bool:
        """Whether the node has no number yet."""
        return self.raw[0] >= 0x80


INITIAL_SNAPSHOT_ID = SnapshotId.parse("1CECHNKREP0F1RSTCMT0")
"""The id of the first snapshot of every repository of generations v1 and v2."""
