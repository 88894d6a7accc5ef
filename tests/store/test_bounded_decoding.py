"""Chunks that decode to more than their array allows are refused before memory is spent."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs as nc
import zstandard
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import cpu

from icefloe.credentials import Credentials
from icefloe.errors import FormatError
from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.storage.store_configs import local_filesystem_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

# The codecs of numcodecs are not in the Zarr specification.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

CHUNK = 1000
DECODED = 64 << 20
ALLOWED = 16 << 20
ZEROS = bytes(DECODED)


def make_frame_without_size(data: bytes) -> bytes:
    """Compress with Zstandard, without the content size."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


BLOSC = b"\x02\x01\x33\x01" + struct.pack("<III", DECODED, 1 << 20, 1000) + bytes(984)
BOMBS: dict[str, tuple[Callable[[], Any], bytes]] = {
    "zstd": (ZstdCodec, zstandard.compress(ZEROS)),
    "zstd without a size": (ZstdCodec, make_frame_without_size(ZEROS)),
    "zstd in many frames": (ZstdCodec, zstandard.compress(ZEROS[: 1 << 10]) * 2000),
    "gzip": (GzipCodec, gzip.compress(ZEROS)),
    "blosc": (BloscCodec, BLOSC),
    "numcodecs.zstd": (nc.Zstd, zstandard.compress(ZEROS)),
    "numcodecs.gzip": (nc.GZip, gzip.compress(ZEROS)),
    "numcodecs.zlib": (nc.Zlib, zlib.compress(ZEROS)),
    "numcodecs.blosc": (nc.Blosc, BLOSC),
    "numcodecs.lz4": (nc.LZ4, struct.pack("<I", DECODED) + bytes(1000)),
    "numcodecs.bz2": (nc.BZ2, bz2.compress(ZEROS)),
    "numcodecs.lzma": (nc.LZMA, lzma.compress(ZEROS)),
}


def create(codecs: Any, *, dtype: str = "u1", shards: int | None = None, chunk: int = CHUNK) -> Any:
    """Create an array of four chunks in a new repository."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    store = Repository.create(in_memory_storage(), config).writable_session("main").store
    return zarr.create_array(
        store,
        name="a",
        shape=(4 * chunk,),
        chunks=(chunk,),
        shards=None if shards is None else (shards * chunk,),
        dtype=dtype,
        compressors=codecs,
    )


def set_chunk(array: Any, index: int, data: bytes) -> None:
    """Replace the encoded bytes of a chunk."""
    array.store.set_sync(f"a/c/{index}", cpu.Buffer.from_bytes(data))


def make_shard(chunk: bytes) -> bytes:
    """Make a shard of two chunks, of which the second is missing."""
    index = struct.pack("<4Q", 0, len(chunk), *[2**64 - 1] * 2)
    return chunk + index + struct.pack("<I", google_crc32c.value(index))


def require_refused(array: Any, place: int) -> None:
    """Check that a chunk is refused by all ways to read it, with little memory."""

    def write_item() -> None:
        array[place] = 1

    tracemalloc.start()
    try:
        for step in (lambda: array[:], lambda: array[place], write_item):
            with pytest.raises(FormatError, match=r"^chunks/\w+, .*: chunk \[1\] of /a cannot"):
                step()
        assert tracemalloc.get_traced_memory()[1] < ALLOWED
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("chunk", [CHUNK, 100 * CHUNK])
def test_chunks_that_are_too_large(name: str, chunk: int) -> None:
    """Chunks that decode to more than their array allows, in the calling thread and in others."""
    make_codec, data = BOMBS[name]
    array = create(make_codec(), chunk=chunk)
    set_chunk(array, 1, data)
    require_refused(array, chunk)


@pytest.mark.parametrize("name", BOMBS)
def test_shards_with_chunks_that_are_too_large(name: str) -> None:
    """The chunks in a shard are bounded by their own size."""
    make_codec, data = BOMBS[name]
    array = create(make_codec(), shards=2)
    set_chunk(array, 1, make_shard(data))
    require_refused(array, 2 * CHUNK)


def test_compressed_twice() -> None:
    """The first codec bounds what the second decodes."""
    array = create([ZstdCodec(), GzipCodec()])
    set_chunk(array, 1, gzip.compress(ZEROS))
    require_refused(array, CHUNK)
    set_chunk(array, 1, gzip.compress(zstandard.compress(ZEROS)))
    require_refused(array, CHUNK)


@pytest.mark.parametrize("dtype", ["string", "variable_length_bytes"])
@pytest.mark.filterwarnings("ignore:The data type")
def test_too_many_items(dtype: str) -> None:
    """Strings have no largest size, but each chunk has as many as its shape says."""
    array = create(None, dtype=dtype)
    set_chunk(array, 1, struct.pack("<I", 2**27))
    tracemalloc.start()
    with pytest.raises(FormatError, match="it has 134217728 items instead of 1000"):
        array[:]
    assert tracemalloc.get_traced_memory()[1] < ALLOWED
    tracemalloc.stop()


CHAINS: list[list[Callable[[], Any]]] = [
    *([make_codec] for make_codec, _ in BOMBS.values()),
    [ZstdCodec, Crc32cCodec],
    [lambda: GzipCodec(level=0), lambda: GzipCodec(level=0), BloscCodec, Crc32cCodec],
    [lambda: nc.Shuffle(elementsize=2), nc.LZ4, nc.Adler32, nc.Zlib, nc.BZ2, nc.LZMA],
    [nc.Fletcher32, ZstdCodec],
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("chunk", [1, 50 * CHUNK])
def test_incompressible_chunks(
    chain: list[Callable[[], Any]], shards: int | None, chunk: int
) -> None:
    """Chunks that grow when they are compressed are within the bounds."""
    codecs = [make_codec() for make_codec in chain]
    array = create(codecs, dtype="u2", shards=shards, chunk=chunk)
    values = np.random.default_rng(0).integers(0, 2**16, 4 * chunk, "u2")
    array[:] = values
    np.testing.assert_array_equal(array[:], values)


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_compressed_shards() -> None:
    """Codecs after the sharding codec are bounded by the size of the shard."""
    store = Repository.create(in_memory_storage()).writable_session("main").store
    codec = ShardingCodec(chunk_shape=(10,), codecs=[BytesCodec(), ZstdCodec()])
    array: Any = zarr.create_array(
        store,
        name="a",
        shape=(4000,),
        chunks=(1000,),
        dtype="u1",
        serializer=codec,
        compressors=[GzipCodec()],
    )
    values = np.random.default_rng(0).integers(0, 256, 4000, "u1")
    array[:] = values
    np.testing.assert_array_equal(array[:], values)
    set_chunk(array, 1, gzip.compress(ZEROS))
    require_refused(array, 1000)


@pytest.mark.parametrize(
    "frames",
    [
        [make_frame_without_size(bytes(CHUNK))],
        [zstandard.compress(bytes(CHUNK // 2))] * 2,
        [make_frame_without_size(bytes(CHUNK - 1)), zstandard.compress(b"\0")],
        [struct.pack("<II", 0x184D2A50, 4) + b"skip", zstandard.compress(bytes(CHUNK))],
    ],
)
def test_unusual_frames(frames: Iterable[bytes]) -> None:
    """All valid Zstandard frames are decoded: without a size, several, and skippable ones."""
    array = create(ZstdCodec())
    array[:] = 1
    set_chunk(array, 1, b"".join(frames))
    assert array[CHUNK : 2 * CHUNK].sum() == 0


def test_several_gzip_members() -> None:
    """A chunk may consist of several Gzip members."""
    array = create(GzipCodec())
    array[:] = 1
    set_chunk(array, 1, gzip.compress(bytes(CHUNK // 2)) * 2)
    assert array[CHUNK : 2 * CHUNK].sum() == 0


@pytest.mark.parametrize("name", BOMBS)
def test_chunks_that_are_not_compressed(name: str) -> None:
    """Any bytes are refused with an error that names the chunk."""
    array = create(BOMBS[name][0]())
    for data in (b"?", bytes(40), b"\xff" * 40):
        set_chunk(array, 1, data)
        require_refused(array, CHUNK)


def test_inline_chunks() -> None:
    """The error for an inline chunk names its manifest, or says that it is not committed."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=512)
    repository = Repository.create(in_memory_storage(), config)
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4,), chunks=(1,), dtype="u1")
    set_chunk(array, 1, b"?")
    with pytest.raises(FormatError, match=r"^uncommitted changes: chunk \[1\] of /a cannot"):
        array[:]
    session.commit("damaged")
    stored: Any = zarr.open_array(repository.readonly_session("main").store, path="a")
    with pytest.raises(FormatError, match=r"^manifests/\w+: chunk \[1\] of /a cannot"):
        stored[:]


def test_virtual_chunks(tmp_path: Path) -> None:
    """The error for a virtual chunk names its location and its container."""
    (tmp_path / "file").write_bytes(b"?" * 10)
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(str(tmp_path)), name="disk")
    )
    access = {prefix: Credentials.LocalFileSystemAccess()}
    repository = Repository.create(
        in_memory_storage(), config, authorize_virtual_chunk_access=access
    )
    store = repository.writable_session("main").store
    array: Any = zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="u1")
    store.set_virtual_ref("a/c/1", f"{prefix}file", offset=2, length=4)
    with pytest.raises(FormatError) as info:
        array[:]
    where = f"{prefix}file in container {prefix} (disk), bytes 2 to 6"
    assert info.value.file == where
    assert "chunk [1] of /a cannot be decoded" in info.value.reason


def test_errors_of_batches() -> None:
    """The error names the chunk if Zarr decodes several chunks at a time."""
    with zarr.config.set({"codec_pipeline.batch_size": 4}):
        array = create(ZstdCodec(), chunk=100 * CHUNK)
        array[:] = 1
        set_chunk(array, 1, b"?")
        require_refused(array, 100 * CHUNK)


def test_errors_of_the_caller() -> None:
    """Values that cannot be encoded are not blamed on the stored chunk."""
    array = create(ZstdCodec())
    array[:] = 1
    with pytest.raises(ValueError, match=r"could not convert|invalid literal"):
        array[3] = "x"
