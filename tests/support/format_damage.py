"""Damage to metadata files, and the judge who says whether a decoder took it well."""

from __future__ import annotations

import struct
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.envelope import read_header
from icefloe.model.repo_info import RepoInfo
from icefloe.model.snapshot import Snapshot
from support.codec_choice import columnar_codecs
from support.format_kinds import KINDS, body_of, force_metadata, rewrap

if TYPE_CHECKING:
    import random

FILE = "a/damaged/file"
_EDGES = (0, 1, 2, 3, 4, 8, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1)


class NotTakenWellError(AssertionError):
    """A decoder did something else than refuse a damaged file or read what can be written."""


def judge(data: bytes) -> bool:
    """Decode damaged bytes; returns whether they were accepted, and raises if not taken well.

    A file is refused with a `FormatError` that names it. What is accepted can be written and read
    again, and is then equal; or it cannot be written, and the writer says so. The direct and the
    columnar codecs agree.
    """
    value = _read_and_write(data)
    with columnar_codecs():
        other = _read_and_write(data)
    if not _same(value, other):
        raise NotTakenWellError(f"the codecs of columns give {other!r}, the direct ones {value!r}")
    return value is not None


def _read_and_write(data: bytes) -> Any:
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        try:
            header = read_header(data, FILE)
            kind = KINDS.get(header.file_type)
            if kind is None:
                return None
            value = kind.decode(data, FILE)
            force_metadata(value)
        except FormatError as error:
            if not str(error).startswith(FILE) or not error.reason:
                raise NotTakenWellError(f"{error} does not name the file") from error
            return None
        try:
            written = kind.write(value, header.spec_version)
        except (FormatError, InvalidInputError):
            return value
        again = kind.decode(written, FILE)
        if not _same(value, again):
            raise NotTakenWellError(f"{value!r} came back as {again!r}")
        return value


def _same(value: Any, again: Any) -> bool:
    if value == again:
        return True
    # Not a number is not equal to itself, but it is spelled the same.
    return isinstance(value, Snapshot | RepoInfo) and repr(value) == repr(again)


def damage(data: bytes, random: random.Random) -> bytes:
    """Change bytes of a file, as it is or inside the compression."""
    if random.random() < 0.2:
        return mutate(data, random)
    return rewrap(data, mutate(body_of(data), random))


def flip_bit(data: bytes, random: random.Random) -> bytes:
    """Change one bit."""
    out = bytearray(data)
    _flip_bit(out, random)
    return bytes(out)


def mutate(data: bytes, random: random.Random) -> bytes:
    """Change bytes in one to eight places."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        if not out:
            break
        random.choice(_MUTATIONS)(out, random)
    return bytes(out)


def _flip_bit(out: bytearray, random: random.Random) -> None:
    out[random.randrange(len(out))] ^= 1 << random.randrange(8)


def _set_byte(out: bytearray, random: random.Random) -> None:
    out[random.randrange(len(out))] = random.randrange(256)


def _truncate(out: bytearray, random: random.Random) -> None:
    del out[random.randrange(len(out)) :]


def _overwrite_word(out: bytearray, random: random.Random) -> None:
    """Set an aligned number of 32 bits, a length or an offset as like as not, to an edge."""
    if len(out) < 4:
        return
    at = random.randrange(len(out) // 4) * 4
    (old,) = struct.unpack_from("<I", out, at)
    edges = (*_EDGES, len(out), len(out) - at, old + 4, old - 4, old + 1, old * 2, -old)
    struct.pack_into("<I", out, at, random.choice(edges) & 0xFFFFFFFF)


def _overwrite_half(out: bytearray, random: random.Random) -> None:
    """Set an aligned number of 16 bits, which is what vtables consist of."""
    if len(out) < 2:
        return
    at = random.randrange(len(out) // 2) * 2
    value = random.choice((0, 2, 4, 6, 8, 12, 64, 0xFFFE, 0xFFFF, random.randrange(128)))
    struct.pack_into("<H", out, at, value)


def _copy_word(out: bytearray, random: random.Random) -> None:
    """Let one place say what another says, so that offsets cross and ids repeat."""
    words = len(out) // 4
    if words:
        source, target = random.randrange(words) * 4, random.randrange(words) * 4
        out[target : target + 4] = out[source : source + 4]


def _splice(out: bytearray, random: random.Random) -> None:
    """Copy, move or remove a stretch."""
    start = random.randrange(len(out))
    piece = out[start : start + random.choice((1, 4, 8, 32, 256))]
    target = random.randrange(len(out))
    match random.randrange(3):
        case 0:
            out[target : target + len(piece)] = piece
        case 1:
            out[target:target] = piece
        case _:
            del out[start : start + len(piece)]


_MUTATIONS = (
    _flip_bit,
    _set_byte,
    _truncate,
    _overwrite_word,
    _overwrite_word,
    _overwrite_half,
    _copy_word,
    _splice,
)
