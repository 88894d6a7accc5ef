"""The envelope of metadata files: a header of 39 bytes, then one zstd frame.

To prevent decompression bombs, the decompressed size is limited to the maximum size of a flatbuffer
and to a compression ratio far above that of real files.
"""

from __future__ import annotations

import contextlib
import threading
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
"""The default compression level of metadata files other than manifests and transaction logs."""

_WRITER = f"icefloe-{__version__}".encode()[:24].ljust(24)
_ZSTD = 1
# The manifests of the benchmarks have ratios of 6 and 18.
_MAX_RATIO = 1000
_SIZE_LIMIT_FLOOR = 64 << 20
_MIN_THREADED_SIZE = 8 << 20
_MAX_WHOLE_SIZE = 1 << 20
_THREADS = 2


class FileType(IntEnum):
    """The type of a metadata file."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4
    CHUNK = 5
    REPO_INFO = 6


_FILE_TYPES = {int(file_type): file_type for file_type in FileType}


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a metadata file."""

    writer: str
    spec_version: int
    file_type: FileType


def read_header(data: bytes | memoryview, file: str) -> Header:
    """Read the header of a metadata file."""
    head = bytes(data[:HEADER_SIZE])
    if not head.startswith(MAGIC):
        problem = "not a metadata file: it does not start with ICE🧊CHUNK"
        raise _envelope_error(problem, file)
    if len(head) < HEADER_SIZE:
        problem = f"truncated: {len(head)} bytes, but the header has {HEADER_SIZE}"
        raise _envelope_error(problem, file)
    spec_version, file_type, compression = head[36:]
    if spec_version not in SPEC_VERSIONS:
        raise FormatError(
            f"has spec version {spec_version}, but icefloe supports spec versions "
            f"{SPEC_VERSIONS[0]} and {SPEC_VERSIONS[1]}: upgrade icefloe",
            file=file,
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if file_type not in _FILE_TYPES:
        raise _envelope_error(f"unknown file type {file_type}", file)
    if compression != _ZSTD:
        problem = f"unknown compression {compression}; metadata files are compressed with zstd (1)"
        raise _envelope_error(problem, file)
    writer = head[12:36].rstrip(b" \0").decode("utf-8", "replace")
    return Header(writer, spec_version, _FILE_TYPES[file_type])


def unpack(data: bytes | memoryview, file_type: FileType, file: str) -> tuple[Header, bytes]:
    """Read the header, check the file type, and decompress the content."""
    header = read_header(data, file)
    if header.file_type is not file_type:
        actual, expected = _format_file_type(header.file_type), _format_file_type(file_type)
        raise _envelope_error(f"has file type {actual}, expected {expected}", file)
    return header, _decompress(memoryview(data)[HEADER_SIZE:], file)


def pack(
    pieces: Iterable[bytes | bytearray | memoryview],
    size: int,
    *,
    file_type: FileType,
    spec_version: int,
    level: int,
) -> bytes:
    """Build a metadata file from the pieces of a flatbuffer of ``size`` bytes."""
    parts = [MAGIC, _WRITER, bytes((spec_version, file_type, _ZSTD))]
    if size <= _MAX_WHOLE_SIZE:
        parts.append(_contexts.get_compressor(level).compress(b"".join(pieces)))
        return b"".join(parts)
    # Large files are compressed in threads while later pieces are encoded.
    threads = _THREADS if size > _MIN_THREADED_SIZE else 0
    # The content size in the frame header lets readers allocate once.
    compressor = zstandard.ZstdCompressor(level=level, threads=threads).compressobj(size=size)
    parts += [compressor.compress(piece) for piece in pieces]
    parts.append(compressor.flush())
    return b"".join(parts)


class _Contexts(threading.local):
    """The compression contexts of a thread: making one takes longer than a small file."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}

    def get_compressor(self, level: int) -> zstandard.ZstdCompressor:
        """Return the compressor of a level; it records the content size in its frames."""
        if level not in self._compressors:
            self._compressors[level] = zstandard.ZstdCompressor(level=level)
        return self._compressors[level]


_contexts = _Contexts()


def _decompress(frame: memoryview, file: str) -> bytes:
    limit = min(MAX_FLATBUFFER_SIZE, max(_SIZE_LIMIT_FLOOR, _MAX_RATIO * len(frame)))
    try:
        size = zstandard.frame_content_size(frame)
        if size > limit:
            raise FormatError(
                f"declares a decompressed size of {size} bytes; the limit is {limit}",
                file=file,
            )
        if size >= 0:
            return _decompress_frame(frame, size)
        # Some writers omit the size. The first buffer usually suffices; its unused part is cheap,
        # because the system maps pages when they are written.
        capacity = min(limit, max(_SIZE_LIMIT_FLOOR, 64 * len(frame)))
        while capacity < limit:
            with contextlib.suppress(zstandard.ZstdError):
                return _decompress_frame(frame, capacity)
            capacity = min(limit, 4 * capacity)
        return _decompress_frame(frame, limit)
    except zstandard.ZstdError as error:
        raise FormatError(
            f"its zstd frame is damaged, truncated, or larger than {limit} bytes ({error})",
            file=file,
        ) from error


def _decompress_frame(frame: memoryview, capacity: int) -> bytes:
    # Extra data after the frame means that the file is damaged.
    return _contexts.decompressor.decompress(
        frame, max_output_size=capacity, allow_extra_data=False
    )


def _envelope_error(problem: str, file: str) -> FormatError:
    return FormatError(problem, file=file, kind=ErrorKind.INVALID_FILE_FORMAT)


def _format_file_type(file_type: FileType) -> str:
    return file_type.name.lower().replace("_", " ")
