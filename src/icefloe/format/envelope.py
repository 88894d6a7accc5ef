"""The envelope of metadata files: a header of 39 bytes, then one zstd frame.

Decompression is bounded by the maximum size of a flatbuffer, and by a compression ratio far above
that of real files, so that a small file cannot exhaust memory.
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
"""The default compression level of metadata files other than manifests."""

_WRITER = f"icefloe-{__version__}".encode()[:24].ljust(24)
_ZSTD = 1
# The manifests of the benchmark have ratios of 6 and 18.
_MAX_RATIO = 1000
_SMALL_SIZE = 64 << 20
_LARGE_SIZE = 8 << 20
_THREADS = 2


class FileType(IntEnum):
    """The kind of a metadata file."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a metadata file."""

    writer: str
    spec_version: int
    file_type: FileType


def read_header(data: bytes | memoryview, file: str) -> Header:
    """Read the header of a metadata file."""
    head = bytes(data[:HEADER_SIZE])
    if head[: len(MAGIC)] != MAGIC[: len(head)] or len(head) < len(MAGIC):
        problem = "not a metadata file of a repository (it does not start with ICE🧊CHUNK)"
        raise _envelope_error(problem, file)
    if len(head) < HEADER_SIZE:
        problem = f"truncated: {len(head)} bytes, where the header alone has {HEADER_SIZE}"
        raise _envelope_error(problem, file)
    spec_version, file_type, compression = head[36:]
    if spec_version not in SPEC_VERSIONS:
        raise FormatError(
            f"written for version {spec_version} of the specification; icefloe reads versions "
            f"{SPEC_VERSIONS[0]} and {SPEC_VERSIONS[1]}: a newer icefloe may read it",
            file=file,
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if file_type not in FileType.__members__.values():
        raise _envelope_error(f"unknown file type {file_type}", file)
    if compression != _ZSTD:
        problem = f"unknown compression {compression}; metadata files are compressed with zstd (1)"
        raise _envelope_error(problem, file)
    writer = head[12:36].rstrip(b" \0").decode("utf-8", "replace")
    return Header(writer, spec_version, FileType(file_type))


def unpack(data: bytes | memoryview, file_type: FileType, file: str) -> tuple[Header, bytes]:
    """Read the header, check the kind of the file, and decompress the content."""
    header = read_header(data, file)
    if header.file_type is not file_type:
        found, expected = _describe(header.file_type), _describe(file_type)
        raise _envelope_error(f"holds a {found} where a {expected} was expected", file)
    return header, _decompress(memoryview(data)[HEADER_SIZE:], file)


def pack(
    pieces: Iterable[bytes | memoryview],
    size: int,
    *,
    file_type: FileType,
    spec_version: int,
    level: int,
) -> bytes:
    """Return the file of a flatbuffer of ``size`` bytes, given in pieces."""
    # Large files are compressed in threads while the next pieces are made.
    threads = _THREADS if size > _LARGE_SIZE else 0
    # The size in the frame lets readers allocate once.
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
        # Some writers omit the size. Unused room costs nothing, since memory is mapped on the first
        # write, so the first attempt mostly suffices.
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
    # Extra data after the frame means a damaged file.
    return zstandard.ZstdDecompressor().decompress(
        frame, max_output_size=room, allow_extra_data=False
    )


def _envelope_error(problem: str, file: str) -> FormatError:
    return FormatError(problem, file=file, kind=ErrorKind.INVALID_FILE_FORMAT)


def _describe(file_type: FileType) -> str:
    return file_type.name.lower().replace("_", " ")
