"""Benchmarks of sessions and Zarr, with the same code for both libraries.

``python sessions.py LIBRARY WORK FOLDER`` prints JSON; the library is icefloe or icechunk.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNKS, CHUNK_ITEMS = 10_000, 4096  # items of four bytes: 16 KB per chunk
REFS, REFS_PER_FILE = 1_000_000, 1000
ARRAYS, CHUNKS_PER_ARRAY = 2_000, 10

os.environ.setdefault("ICECHUNK_LOG", "error")


class Clock(dict[str, float]):
    """Seconds of each operation."""

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Measure the time of a block."""
        start = time.perf_counter()
        yield
        self[operation] = time.perf_counter() - start


def write_chunks(library: Any, folder: Path, config: Any = None) -> dict[str, float]:
    """Write and read ten thousand small chunks."""
    storage = library.local_filesystem_storage(str(folder))
    session = library.Repository.create(storage, config).writable_session("main")
    group = zarr.create_group(session.store)
    array = group.create_array(
        "a", shape=(CHUNKS * CHUNK_ITEMS,), chunks=(CHUNK_ITEMS,), dtype="f4", compressors=None
    )
    data = np.random.default_rng(0).random(CHUNKS * CHUNK_ITEMS, np.float32)
    clock = Clock()
    with clock.measure("write"):
        array[:] = data
        session.commit("bench")
    reader = library.Repository.open(storage).readonly_session("main")
    with clock.measure("read"):
        values = zarr.open_array(reader.store, path="a", mode="r")[:]
    assert np.array_equal(np.asarray(values), data)
    return clock


def write_packed_chunks(library: Any, folder: Path) -> dict[str, float]:
    """Write and read ten thousand small chunks packed, which only icefloe supports."""
    return write_chunks(library, folder, library.RepositoryConfig(packing=library.PackingConfig()))


def change_one_chunk(library: Any, folder: Path) -> dict[str, float]:
    """Change one chunk of an array with a million references, with empty caches."""
    storage = library.local_filesystem_storage(str(folder))
    session = library.Repository.create(storage).writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(REFS,), chunks=(1,), dtype="i4", compressors=None, fill_value=-1)
    specs = [
        library.VirtualChunkSpec(
            [number],
            f"s3://bucket/{number // REFS_PER_FILE:04d}.nc",
            number % REFS_PER_FILE * 100,
            100,
        )
        for number in range(REFS)
    ]
    session.store.set_virtual_refs("a", specs, validate_containers=False)
    session.commit("bench")
    session = library.Repository.open(storage).writable_session("main")
    zarr.open_array(session.store, path="a")[REFS // 2] = 1
    clock = Clock()
    with clock.measure("commit"):
        session.commit("bench")
    return clock


def change_many_arrays(library: Any, folder: Path) -> dict[str, float]:
    """Change a chunk of each of two thousand arrays."""
    storage = library.local_filesystem_storage(str(folder))
    repository = library.Repository.create(storage)
    session = repository.writable_session("main")
    array = zarr.create_array({}, shape=(CHUNKS_PER_ARRAY,), chunks=(1,), dtype="i4")
    metadata = _make_buffer(json.dumps(array.metadata.to_dict(), default=str).encode())

    async def fill(store: Any) -> None:
        group = b'{"zarr_format":3,"node_type":"group","attributes":{}}'
        await store.set("zarr.json", _make_buffer(group))
        for number in range(ARRAYS):
            await store.set(f"{number}/zarr.json", metadata)
            for chunk in range(CHUNKS_PER_ARRAY):
                await store.set(f"{number}/c/{chunk}", _make_buffer(b"1234"))

    async def change(store: Any) -> None:
        for number in range(ARRAYS):
            await store.set(f"{number}/c/3", _make_buffer(b"abcd"))

    sync(fill(session.store))
    session.commit("bench")
    session = repository.writable_session("main")
    sync(change(session.store))
    clock = Clock()
    with clock.measure("commit"):
        session.commit("bench")
    return clock


def _make_buffer(data: bytes) -> Any:
    return default_buffer_prototype().buffer.from_bytes(data)


WORK = {
    "chunks": write_chunks,
    "packed_chunks": write_packed_chunks,
    "one_chunk": change_one_chunk,
    "many_arrays": change_many_arrays,
}

if __name__ == "__main__":
    name, work, target = sys.argv[1:]
    print(json.dumps(WORK[work](importlib.import_module(name), Path(target))))
