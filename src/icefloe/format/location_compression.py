"""Compression of locations with a zstd dictionary in the manifest (spec version 2).

One batch call compresses or decompresses all distinct locations, without a Python loop.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import zstandard

from icefloe.errors import FormatError
from icefloe.format.flatbuffer_reader import is_utf8
from icefloe.model.columns import to_offsets
from icefloe.model.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# The limit of Icechunk's reader.
MAX_LOCATION_SIZE = 1024

# Each distinct location, of at most 1024 bytes, takes about 64 bytes or more in a valid file (its
# reference and its zstd frame), so all locations together are at most about 16 times the file.
_MAX_RATIO = 16
_SIZE_LIMIT_FLOOR = 64 << 20

_MAGIC = 0xFD2FB528
_EMPTY_LAST_BLOCK = 1
_SEGMENT = np.dtype([("offset", "<u8"), ("length", "<u8")])


@dataclass(frozen=True, slots=True)
class CompressedLocations:
    """Distinct locations as zstd frames, with their dictionary."""

    dictionary: bytes
    frames: Strings  # bytes, not UTF-8


@dataclass(frozen=True, slots=True)
class LocationCompression:
    """Settings of the compression, with Icechunk's defaults; they apply to distinct locations."""

    min_locations: int = 1000
    max_training_samples: int = 100
    max_dictionary_bytes: int = 2048
    level: int = 3

    def compress(self, locations: Strings) -> CompressedLocations | None:
        """Compress locations; return None if they should be stored uncompressed."""
        lengths = locations.lengths
        if len(locations) < max(self.min_locations, 1) or lengths.max() > MAX_LOCATION_SIZE:
            return None
        dictionary = self._train(locations)
        if dictionary is None:
            return None
        compressor = zstandard.ZstdCompressor(level=self.level, dict_data=dictionary)
        frames = compressor.multi_compress_to_buffer(_to_segments(locations))
        return CompressedLocations(dictionary.as_bytes(), _to_strings(frames))

    def _train(self, locations: Strings) -> zstandard.ZstdCompressionDict | None:
        count = max(1, min(self.max_training_samples, len(locations)))
        sample_rows = np.linspace(0, len(locations) - 1, count).astype(np.int64)
        samples: list[bytes | bytearray | memoryview] = [
            locations[int(row)].encode() for row in sample_rows
        ]
        # As in Icechunk: training fails or is useless if most samples have fewer than 8 bytes.
        if 2 * sum(len(sample) < 8 for sample in samples) >= count:
            return None
        # As in Icechunk: zstd may reject samples that have fewer bytes than the dictionary.
        repeats = -(-self.max_dictionary_bytes // sum(len(sample) for sample in samples))
        try:
            return zstandard.train_dictionary(self.max_dictionary_bytes, samples * repeats)
        except zstandard.ZstdError:
            return None  # too few or too uniform samples


def decompress(frames: Strings, dictionary: bytes, file: str, *, file_size: int) -> Strings:
    """Decompress the distinct locations of a manifest with ``file_size`` bytes."""
    sizes = _read_content_sizes(frames, file)
    if (sizes > MAX_LOCATION_SIZE).any():
        raise FormatError(
            f"a compressed location declares {int(sizes.max())} bytes; the limit is "
            f"{MAX_LOCATION_SIZE}",
            file=file,
        )
    total, limit = int(sizes.sum()), max(_SIZE_LIMIT_FLOOR, _MAX_RATIO * file_size)
    if total > limit:
        raise FormatError(
            f"its compressed locations declare {total} bytes; the limit is {limit}", file=file
        )
    decompressor = _make_decompressor(dictionary, file)
    try:
        # The batch call does not accept empty locations.
        nonempty = np.flatnonzero(sizes)
        decompressed = Strings(np.zeros(0, np.uint8), np.zeros(1, np.int64))
        if len(nonempty):
            batch = decompressor.multi_decompress_to_buffer(
                _to_segments(frames, nonempty),
                decompressed_sizes=sizes[nonempty].astype("<u8").tobytes(),
            )
            decompressed = _to_strings(batch)
    except (zstandard.ZstdError, ValueError) as error:
        raise _make_damage_error(error, file) from error
    offsets = to_offsets(sizes)
    if len(decompressed.data) != offsets[-1]:
        raise FormatError("a compressed location does not have its declared size", file=file)
    result = Strings(decompressed.data, offsets)
    if not is_utf8(result):
        raise FormatError("a compressed location is not valid UTF-8", file=file)
    return result


class LocationDecompressor:
    """Decompresses single locations of a manifest."""

    def __init__(self, dictionary: bytes, file: str) -> None:
        self._file = file
        self._decompressor = _make_decompressor(dictionary, file)
        self._lock = threading.Lock()  # zstandard's decompressors are not thread-safe

    def decompress(self, frame: bytes) -> str:
        """Decompress a location."""
        try:
            # Unlike the decompressor, this does not allocate the declared size.
            size = zstandard.frame_content_size(frame)
            if not 0 <= size <= MAX_LOCATION_SIZE:
                raise FormatError(
                    f"a compressed location declares {size} bytes; the limit is "
                    f"{MAX_LOCATION_SIZE}",
                    file=self._file,
                )
            with self._lock:
                return self._decompressor.decompress(frame, allow_extra_data=False).decode()
        except UnicodeDecodeError as error:
            raise FormatError("a compressed location is not valid UTF-8", file=self._file) from (
                error
            )
        except zstandard.ZstdError as error:
            raise _make_damage_error(error, self._file) from error


def _make_decompressor(dictionary: bytes, file: str) -> zstandard.ZstdDecompressor:
    try:
        return zstandard.ZstdDecompressor(
            dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise _make_damage_error(error, file) from error


def _make_damage_error(error: Exception, file: str) -> FormatError:
    return FormatError(f"a compressed location is damaged ({error})", file=file)


def _read_content_sizes(frames: Strings, file: str) -> NDArray[np.int64]:
    """Read the declared size of each frame; the batch call would allocate it unchecked."""
    starts, lengths = frames.offsets[:-1], frames.lengths
    # Padded, so that every header can be read; truncated frames are detected below.
    data = np.concatenate([frames.data, np.zeros(32, np.uint8)])
    # Views with the little-endian integer that starts at each byte.
    u4_at = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
    u2_at = np.ndarray((len(data) - 1,), "<u2", data, 0, (1,))
    descriptor = data[starts + 4]
    single_segment = descriptor >> 5 & 1
    size_flag = descriptor >> 6
    dictionary_id_bytes = np.array([0, 1, 2, 4])[descriptor & 3]
    size_starts = starts + 5 + (1 - single_segment.astype(np.int64)) + dictionary_id_bytes
    field_bytes = np.where(size_flag == 0, single_segment, np.left_shift(1, size_flag))
    sizes: NDArray[np.int64] = np.select(
        [field_bytes == 1, field_bytes == 2, field_bytes == 4],
        [
            data[size_starts].astype(np.int64),
            u2_at[size_starts].astype(np.int64) + 256,
            u4_at[size_starts].astype(np.int64),
        ],
        -1,
    )
    block_starts = size_starts + field_bytes
    # Empty locations are not decompressed later, so their blocks are checked here.
    is_damaged = (sizes == 0) & (u4_at[block_starts] & 0xFFFFFF != _EMPTY_LAST_BLOCK)
    is_damaged |= (u4_at[starts] != _MAGIC) | (block_starts > starts + lengths) | (sizes < 0)
    if is_damaged.any():
        raise FormatError(
            "a compressed location is not a zstd frame that declares its content size", file=file
        )
    return sizes


def _to_segments(
    strings: Strings, rows: NDArray[np.int64] | None = None
) -> zstandard.BufferWithSegments:
    starts, lengths = strings.offsets[:-1], strings.lengths
    if rows is not None:
        starts, lengths = starts[rows], lengths[rows]
    segments = np.zeros(len(starts), _SEGMENT)
    segments["offset"], segments["length"] = starts, lengths
    return zstandard.BufferWithSegments(strings.data.tobytes(), segments.tobytes())


def _to_strings(batch: zstandard.BufferWithSegmentsCollection) -> Strings:
    segments = cast("Sequence[bytes]", batch)  # segments support the buffer protocol
    lengths = np.fromiter(map(len, segments), np.int64, len(segments))
    return Strings(np.frombuffer(b"".join(segments), np.uint8), to_offsets(lengths))
