"""The pipeline for small chunks writes the same bytes, and leaves other stores alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.sync import _collect_aiterator, sync
from zarr.storage import MemoryStore

from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.store import codec_pipeline
from icefloe.store.codec_pipeline import SMALL, SmallChunkPipeline

ZARR_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"

CODECS: dict[str, dict[str, Any]] = {
    "none": {"compressors": None},
    "zstd": {"compressors": ZstdCodec(level=1)},
    "blosc": {"compressors": BloscCodec(cname="lz4")},
    "checksum": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))], "compressors": ZstdCodec()},
    "big-endian": {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": None},
}
FILLS = {"f4": (0.0, -0.0, np.nan), "i2": (-1,), "M8[s]": ("NaT",), "U3": ("abc",)}
# Data types that the Zarr specification does not list yet.
pytestmark = pytest.mark.filterwarnings("ignore:The data type")


def read_all(store: Any) -> dict[str, bytes]:
    """Return all keys and values of a store, metadata aside."""
    keys = sync(_collect_aiterator(store.list()))
    prototype = default_buffer_prototype()
    return {
        key: sync(store.get(key, prototype)).to_bytes() for key in keys if "zarr.json" not in key
    }


def work(array: Any, dtype: str) -> list[Any]:
    """Write and read an array in many ways, and return what was read."""
    values = (np.arange(13 * 17).reshape(13, 17) % 100).astype(dtype)
    array[:] = values
    array[3:9, :] = values[4:10, :]  # partial chunks
    array[0:4, 0:5] = array.fill_value  # a chunk that is deleted
    array[12, :] = values[0]  # a dropped dimension
    array.oindex[[1, 11], 4:7] = values[:2, :3]
    array.vindex[[0, 5, 12], [16, 3, 0]] = values[0, :3]
    array[8:, 12:] = values[0, 1]  # one value
    return [
        array[:],
        array[2:11, 3:16],
        array[5],
        array[:, 4],
        array[::3, ::4],
        array[7, 7],
        array.oindex[[0, 12], :],
        array.vindex[[1, 2], [3, 4]],
        array.blocks[1, 1],
    ]


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("dtype, fill", [(d, fill) for d in FILLS for fill in FILLS[d]])
@pytest.mark.parametrize("write_empty", [False, True])
@pytest.mark.parametrize("in_threads", [False, True])
def test_bytes_and_values_are_those_of_zarrs_own_pipeline(
    monkeypatch: pytest.MonkeyPatch,
    codecs: str,
    dtype: str,
    fill: Any,
    *,
    write_empty: bool,
    in_threads: bool,
) -> None:
    if in_threads:
        monkeypatch.setattr(codec_pipeline, "SMALL", 0)
        monkeypatch.setattr(codec_pipeline, "SMALL_UNCOMPRESSED", 0)
    session = Repository.create(in_memory_storage()).writable_session("main")
    stores = {"direct": session.store, "zarr": MemoryStore()}
    stored, read = {}, {}
    for name, store in stores.items():
        array: Any = zarr.create_array(
            store,
            name="a",
            shape=(13, 17),
            chunks=(4, 5),
            dtype=dtype,
            fill_value=np.array(fill, dtype)[()],
            config={"write_empty_chunks": write_empty},
            **CODECS[codecs],
        )
        with zarr.config.set({"codec_pipeline.path": ZARR_DEFAULT} if name == "zarr" else {}):
            array = zarr.open_array(store, path="a", config={"write_empty_chunks": write_empty})
            read[name] = work(array, dtype)
        stored[name] = read_all(store)
    assert stored["direct"] == stored["zarr"]
    for direct, plain in zip(read["direct"], read["zarr"], strict=True):
        np.testing.assert_array_equal(direct, plain)


def array_of(store: Any, item_count: int) -> Any:
    """Create an array of two chunks."""
    return zarr.create_array(
        store, name="a", shape=(2 * item_count,), chunks=(item_count,), dtype="u1"
    )


def thread_hops(monkeypatch: pytest.MonkeyPatch, array: Any) -> int:
    """Count the calls in other threads while an array is written and read."""
    hops = []
    to_thread = asyncio.to_thread

    async def count(function: Any, *args: Any, **kwargs: Any) -> Any:
        hops.append(function)
        return await to_thread(function, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "to_thread", count)
        array[:] = np.arange(array.size, dtype="u1")
        assert array[1] == 1
    return len(hops)


def test_small_chunks_stay_in_the_thread_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    assert thread_hops(monkeypatch, array_of(session.store, SMALL)) == 0


def test_large_chunks_are_shared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    assert thread_hops(monkeypatch, array_of(session.store, SMALL + 1)) > 0


def test_large_chunks_stay_too_where_zarr_may_use_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    array = array_of(session.store, SMALL + 1)
    with zarr.config.set({"threading.max_workers": 1}):
        assert thread_hops(monkeypatch, array) == 0


def test_arrays_of_other_stores_are_unaffected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_hops(monkeypatch, array_of(MemoryStore(), 16)) > 0


def test_missing_chunks_are_reported_to_zarr() -> None:
    if "array.read_missing_chunks" not in zarr.config:
        pytest.skip("MISSING CHUNKS ARE NOT TESTED: this zarr does not report them")
    session = Repository.create(in_memory_storage()).writable_session("main")
    array_of(session.store, 16)
    array = zarr.open_array(session.store, path="a", config={"read_missing_chunks": False})
    errors: Any = import_module("zarr.errors")  # those of a newer zarr
    with pytest.raises(errors.ChunkNotFoundError, match="2 chunk"):
        array[:]


def pipeline_in_a_new_process(code: str = "", **environment: str) -> str:
    """Create a store in a new process, and return which pipeline Zarr uses there."""
    script = f"""
import zarr
{code}
import icefloe
from icefloe.store.codec_pipeline import SmallChunkPipeline
repository = icefloe.Repository.create(icefloe.in_memory_storage())
assert SmallChunkPipeline is not zarr.registry.get_pipeline_class()
repository.readonly_session("main").store
print(zarr.registry.get_pipeline_class())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_pipeline_that_the_user_chose_stays() -> None:
    own = """
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
class Own(BatchedCodecPipeline): pass
register_pipeline(Own)
zarr.config.set({"codec_pipeline.path": "__main__.Own"})
"""
    assert SmallChunkPipeline.__name__ in pipeline_in_a_new_process()
    assert "Own" in pipeline_in_a_new_process(own)


def test_it_is_zarrs_pipeline_but_for_reading_and_writing() -> None:
    own = {name for name in vars(SmallChunkPipeline) if not name.startswith("_")}
    assert own == {"read", "read_batch", "write", "write_batch"}
    assert issubclass(SmallChunkPipeline, BatchedCodecPipeline)
