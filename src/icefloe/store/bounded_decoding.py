"""Decodes chunks only up to the size that their array allows.

Chunks are untrusted: some kilobytes can decompress to gigabytes. `bound_codecs` replaces the codecs
of an array by codecs that know the largest size of what they decode, from the shape and data type
of the chunk and the codecs before them. They compare it with the size that the header of the chunk
declares (Zstandard, Blosc, LZ4), or stop decompressing at it (Gzip, Zlib, bzip2, LZMA, and
Zstandard frames that declare no size). Chunks in shards are bounded by their own size.

Data types of variable length have no such size: only their number of items is checked. What other
codecs decode is not bounded either, nor what they encoded.
"""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import gzip
import io
import lzma
import struct
import threading
import zlib
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Final, Self

import zstandard
from numcodecs import blosc, lz4  # a dependency of zarr
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
from zarr.codecs import BytesCodec, ShardingCodec, VLenBytesCodec, VLenUTF8Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from io import BufferedIOBase

    from zarr.abc.codec import Codec
    from zarr.core.array_spec import ArraySpec

__all__ = ["bound_codecs"]

_U32: Final = struct.Struct("<I")
# Codecs that do not compress, and the number of bytes that they add.
_ADDED_BYTES: Final = {
    "shuffle": 0,
    "crc32c": 4,
    "crc32": 4,
    "adler32": 4,
    "fletcher32": 4,
    "jenkins_lookup3": 4,
}
_GZIP_HEADER: Final = 16 + zlib.MAX_WBITS
_SHARD_INDEX_ENTRY: Final = 16
# Data that cannot be compressed grows, but by no compressor as much as this.
_MAX_GROWTH: Final = 1.25
_MAX_ADDED: Final = 4096


def bound_codecs(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return codecs that raise `ValueError` for chunks larger than the array allows."""
    bounded: list[Codec] = []
    serializers: list[Codec] = []  # the codecs so far that are not filters
    for codec in codecs:
        bounded.append(_bound(codec, tuple(serializers)))
        if not isinstance(codec, ArrayArrayCodec):
            serializers.append(codec)
    return tuple(bounded)


def _bound(codec: Codec, serializers: tuple[Codec, ...]) -> Codec:
    if isinstance(codec, ShardingCodec):
        return _bound_shards(codec)
    if isinstance(codec, VLenBytesCodec | VLenUTF8Codec):
        return _CountedItems(codec)
    if isinstance(codec, BytesBytesCodec) and _get_name(codec) in _DECODERS:
        return _BoundedCodec(codec, _get_name(codec), serializers)
    return codec


def _bound_shards(codec: ShardingCodec) -> ShardingCodec:
    settings: dict[str, Any] = {
        "chunk_shape": codec.chunk_shape,
        "codecs": bound_codecs(codec.codecs),
        "index_codecs": codec.index_codecs,
        "index_location": codec.index_location,
    }
    if hasattr(codec, "subchunk_write_order"):  # a newer zarr
        settings["subchunk_write_order"] = codec.subchunk_write_order
    return ShardingCodec(**settings)


def _get_name(codec: Codec) -> str:
    return str(codec.to_dict()["name"]).removeprefix("numcodecs.")


# -- sizes


def _compute_max_size(codecs: Iterable[Any], spec: ArraySpec) -> int | None:
    """Return the largest size that codecs encode a chunk to; None if it is not known."""
    size: int | None = None
    for codec in codecs:
        if isinstance(codec, ArrayArrayCodec):
            spec = codec.resolve_metadata(spec)
        elif isinstance(codec, ArrayBytesCodec):
            size = _compute_max_serialized_size(codec, spec)
        elif size is not None:
            size = _compute_max_encoded_size(codec, size)
    return size


def _compute_max_serialized_size(codec: ArrayBytesCodec, spec: ArraySpec) -> int | None:
    if isinstance(codec, BytesCodec):
        return prod(spec.shape) * spec.dtype.to_native_dtype().itemsize
    if isinstance(codec, ShardingCodec):
        size = _compute_max_size(codec.codecs, replace(spec, shape=codec.chunk_shape))
        pairs = zip(spec.shape, codec.chunk_shape, strict=True)
        count = prod(ceil(length / part) for length, part in pairs)
        return None if size is None else count * (size + _SHARD_INDEX_ENTRY) + _MAX_ADDED
    return None


def _compute_max_encoded_size(codec: BytesBytesCodec, size: int) -> int | None:
    name = _get_name(codec)
    if name in _ADDED_BYTES:
        return size + _ADDED_BYTES[name]
    return ceil(size * _MAX_GROWTH) + _MAX_ADDED if name in _DECODERS else None


# -- codecs


class _Delegating:
    """The parts of a codec other than decoding, which are those of the original."""

    codec: Any
    is_fixed_size = False

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the codec."""
        metadata: dict[str, Any] = self.codec.to_dict()
        return metadata

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size depends on the values."""
        size: int = self.codec.compute_encoded_size(input_byte_length, chunk_spec)
        return size

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Fill in settings that depend on the array."""
        wrapper: Any = self
        evolved: Self = replace(wrapper, codec=self.codec.evolve_from_array_spec(array_spec))
        return evolved

    @property
    def _sync_capable(self) -> bool:  # an older zarr has asynchronous codecs
        return hasattr(self.codec, "_decode_sync")

    def _encode_sync(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        return self.codec._encode_sync(chunk_data, chunk_spec)  # noqa: SLF001 - Zarr's protocol

    async def _encode_single(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        return await self.codec._encode_single(chunk_data, chunk_spec)  # noqa: SLF001


@dataclass(frozen=True)
class _CountedItems(_Delegating, ArrayBytesCodec):
    """A codec of strings or bytes, whose chunks begin with the number of their items."""

    codec: Any

    def _decode_sync(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        self._require_count(chunk_data, chunk_spec)
        return self.codec._decode_sync(chunk_data, chunk_spec)  # noqa: SLF001

    async def _decode_single(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        self._require_count(chunk_data, chunk_spec)
        return await self.codec._decode_single(chunk_data, chunk_spec)  # noqa: SLF001

    @staticmethod
    def _require_count(chunk_data: Any, chunk_spec: ArraySpec) -> None:
        count, expected = _read_size(chunk_data.as_numpy_array(), 0), prod(chunk_spec.shape)
        if count != expected:
            raise ValueError(f"it has {count} items instead of {expected}")


@dataclass(frozen=True)
class _BoundedCodec(_Delegating, BytesBytesCodec):
    """A compressor that decompresses no more than what the codecs before it can have made."""

    codec: Any
    name: str
    serializers: tuple[Any, ...]
    _last: tuple[ArraySpec, int | None] | None = field(default=None, repr=False, compare=False)

    def _decode_sync(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        decoded = self._decode(chunk_data, chunk_spec)
        if decoded is None:
            return self.codec._decode_sync(chunk_data, chunk_spec)  # noqa: SLF001
        return decoded

    async def _decode_single(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        if self._sync_capable:
            return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)
        decoded = await asyncio.to_thread(self._decode, chunk_data, chunk_spec)
        if decoded is None:
            return await self.codec._decode_single(chunk_data, chunk_spec)  # noqa: SLF001
        return decoded

    def _decode(self, chunk_data: Any, chunk_spec: ArraySpec) -> Any:
        """Decode a chunk, or return None if its size is not bounded."""
        limit = self._get_limit(chunk_spec)
        if limit is None:
            return None
        data = chunk_data.as_numpy_array()
        decoded = _DECODERS[self.name](data, limit, self.codec)
        return chunk_spec.prototype.buffer.from_bytes(decoded)

    def _get_limit(self, spec: ArraySpec) -> int | None:
        # Zarr passes the same object for all chunks of a read.
        last = self._last
        if last is None or last[0] is not spec:
            last = spec, _compute_max_size(self.serializers, spec)
            object.__setattr__(self, "_last", last)
        return last[1]


# -- decoders: (encoded chunk, limit, codec) -> decoded chunk


class _Contexts(threading.local):
    """The decompression context of a thread: making one takes longer than a small chunk."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def _decode_zstd(data: Any, limit: int, _codec: Any) -> bytes:
    size = zstandard.frame_content_size(data)
    _require_within(size, limit)
    if size > 0:
        with contextlib.suppress(zstandard.ZstdError):
            return _contexts.zstd.decompress(data, allow_extra_data=False)
    # Several frames, or frames without a size.
    with _contexts.zstd.stream_reader(data, read_across_frames=True) as reader:
        decoded = reader.read(limit + 1)
    _require_within(len(decoded), limit)
    return decoded


def _decode_blosc(data: Any, limit: int, _codec: Any) -> bytes:
    _require_within(_read_size(data, 4), limit)
    decoded: bytes = blosc.decompress(data)
    return decoded


def _decode_lz4(data: Any, limit: int, _codec: Any) -> bytes:
    _require_within(_read_size(data, 0), limit)
    decoded: bytes = lz4.decompress(data)
    return decoded


def _decode_gzip(data: Any, limit: int, _codec: Any) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_HEADER)
    decoded = decompressor.decompress(data, limit + 1)
    if decompressor.eof and not decompressor.unused_data:
        _require_within(len(decoded), limit)
        return decoded
    # Several members, padding, or too much data.
    return _read_within(gzip.GzipFile(fileobj=io.BytesIO(data)), limit)


def _decode_bz2(data: Any, limit: int, _codec: Any) -> bytes:
    return _read_within(bz2.BZ2File(io.BytesIO(data)), limit)


def _decode_lzma(data: Any, limit: int, codec: Any) -> bytes:
    settings = {name: codec.codec_config.get(name) for name in ("format", "filters")}
    return _read_within(lzma.LZMAFile(io.BytesIO(data), **settings), limit)


def _decode_zlib(data: Any, limit: int, _codec: Any) -> bytes:
    decompressor = zlib.decompressobj()
    decoded = decompressor.decompress(data, limit + 1)
    _require_within(len(decoded), limit)
    if not decompressor.eof:
        raise ValueError("it is truncated")
    return decoded


def _read_within(stream: BufferedIOBase, limit: int) -> bytes:
    with stream:
        decoded = stream.read(limit + 1)
    _require_within(len(decoded), limit)
    return decoded


def _read_size(data: Any, at: int) -> int:
    if len(data) < at + _U32.size:
        raise ValueError("it is truncated")
    size: int = _U32.unpack_from(data, at)[0]
    return size


def _require_within(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"it decompresses to more than the {limit} bytes that it may have")


_DECODERS: Final[dict[str, Callable[[Any, int, Any], bytes]]] = {
    "zstd": _decode_zstd,
    "blosc": _decode_blosc,
    "lz4": _decode_lz4,
    "gzip": _decode_gzip,
    "zlib": _decode_zlib,
    "bz2": _decode_bz2,
    "lzma": _decode_lzma,
}
