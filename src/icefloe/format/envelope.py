"""The envelope of every metadata file: 39 bytes that say what it is, then one zstd frame.

Decompression is bounded: by what a flatbuffer can hold at all, and by a ratio that no honest file
comes near, so that a small file cannot make a reader spend gigabytes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import zstandard

from icefloe import __version__
from icefloe.errors import ErrorKind, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC = b"ICE\xf0\x9f\xa7\x8aCHUNK"
HEADER_SIZE = 39
MAX_FLATBUFFER_SIZE = 2**31 - 1
SPEC_VERSIONS = (1, 2)
DEFAULT_LEVEL = 3
"""How hard metadata is compressed unless the configuration says; manifests have their own."""

_WRITER = f"icefloe-{__version__}".encode()[:24].ljust(24)
_ZSTD = 1
# The manifests of the benchmark compress 6 and 18 times. A thousand times is a bomb, unless the
# whole is small anyway.
_MAX_RATIO = 1000
_SMALL_SIZE = 64 << 20
_LARGE_SIZE = 8 << 20
_THREADS = 2


class FileType(IntEnum):
    """What a metadata file holds."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6


@dataclass(frozen=True, slots=True)
class Header:
    """What the first 39 bytes of a metadata file say."""

    writer: str
    spec_version: int
    file_type: FileType


def read_header(data: bytes | memoryview, file: str) -> Header:
    """Read the header of a metadata file of any kind."""
    head = bytes(data[:HEADER_SIZE])
    if head[: len(MAGIC)] != MAGIC[: len(head)] or len(head) < len(MAGIC):
        raise FormatError(
            "this is no metadata file of a repository (it does not start with ICE🧊CHUNK)",
            file=file,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    if len(head) < HEADER_SIZE:
        raise FormatError(
            f"truncated: {len(head)} bytes, where the header alone has {HEADER_SIZE}",
            file=file,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    spec_version, file_type, compression = head[36:]
    if spec_version not in SPEC_VERSIONS:
        raise FormatError(
            f"written for version {spec_version} of the specification; this icefloe reads "
            f"versions {SPEC_VERSIONS[0]} and {SPEC_VERSIONS[1]}: a newer one may read it",
            file=file,
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if file_type not in FileType.__members__.values():
        raise FormatError(
            f"unknown file type {file_type}", file=file, kind=ErrorKind.INVALID_FILE_FORMAT
        )
    if compression != _ZSTD:
        raise FormatError(
            f"unknown compression {compression}; metadata files are compressed with zstd (1)",
            file=file,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    writer = head[12:36].rstrip(b" \0").decode("utf-8", "replace")
    return Header(writer, spec_version, FileType(file_type))


def unpack(data: bytes | memoryview, file_type: FileType, file: str) -> tuple[Header, bytes]:
    """Read the header, check that it is the expected kind of file, and decompress the rest."""
    header = read_header(data, file)
    if header.file_type is not file_type:
        raise FormatError(
            f"holds a {_say(header.file_type)} where a {_say(file_type)} was expected",
            file=file,
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return header, _decompress(memoryview(data)[HEADER_SIZE:], file)


def pack(
    pieces: Iterable[bytes | memoryview],
    size: int,
    *,
    file_type: FileType,
    spec_version: int,
    level: int,
) -> bytes:
    """Compress the pieces of a flatbuffer of ``size`` bytes behind a header."""
    # Large files are compressed by other threads while the next pieces are being made.
    threads = _THREADS if size > _LARGE_SIZE else 0
    # With the size in the frame, readers allocate once.
    compressor = zstandard.ZstdCompressor(level=level, threads=threads).compressobj(size=size)
    packed = [MAGIC, _WRITER, bytes((spec_version, file_type, _ZSTD))]
    packed += [compressor.compress(piece) for piece in pieces]
    packed.append(compressor.flush())
    return b"".join(packed)


def _decompress(frame: memoryview, file: str) -> bytes:
    limit = min(MAX_FLATBUFFER_SIZE, max(_SMALL_SIZE, _MAX_RATIO * len(frame)))
    try:
        size = zstandard.frame_content_size(frame)
        if size > limit:
            raise FormatError(
                f"claims to decompress from {len(frame)} to {size} bytes; the limit is {limit}",
                file=file,
            )
        if size >= 0:
            return _decompress_at_once(frame, size)
        # Some writers leave the size out. Room that is not used costs nothing, as the operating
        # system hands memory out when it is first written to; so the first try mostly suffices.
        room = min(limit, max(_SMALL_SIZE, 64 * len(frame)))
        while room < limit:
            with contextlib.suppress(zstandard.ZstdError):
                return _decompress_at_once(frame, room)
            room = min(limit, 4 * room)
        return _decompress_at_once(frame, limit)
    except zstandard.ZstdError as error:
        raise FormatError(
            f"its zstd frame is damaged, cut off, or larger than {limit} bytes ({error})", file=file
        ) from error


def _decompress_at_once(frame: memoryview, room: int) -> bytes:
    # Bytes behind the frame would mean that the file is not what its writer wrote.
    return zstandard.ZstdDecompressor().decompress(
        frame, max_output_size=room, allow_extra_data=False
    )


def _say(file_type: FileType) -> str:
    return file_type.name.lower().replace("_", " ")
