"""Reads chunks with and without the bound on their decoded size.

``python bounded_decoding.py FOLDER`` prints the best processor seconds of each as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.registry import register_pipeline

import icefloe
from icefloe.store.codec_pipeline import SmallChunkPipeline

CODECS = {"zstd": ZstdCodec(), "gzip": GzipCodec(), "blosc": BloscCodec(cname="lz4")}
# Bytes and number of chunks, coded in the calling thread and in threads.
SIZES = {"16 KB": (1 << 14, 2000), "1 MB": (1 << 20, 64)}
ROUNDS = 40


class UnboundedPipeline(SmallChunkPipeline):
    """The same pipeline, which trusts the chunks."""

    @property
    def _bounded(self) -> UnboundedPipeline:
        return self


def measure(folder: Path, codec: Any, chunk_bytes: int, count: int) -> dict[str, float]:
    """Read an array alternately with both pipelines."""
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(folder), durable=False)
    )
    session = repository.writable_session("main")
    num_items = chunk_bytes // 4
    shape = (num_items * count,)
    array: Any = zarr.create_array(
        session.store, name="a", shape=shape, chunks=(num_items,), dtype="i4", compressors=codec
    )
    array[:] = np.cumsum(np.random.default_rng(0).integers(0, 3, shape)).astype("i4")
    session.commit("bench")
    store = repository.readonly_session("main").store
    arrays = {}
    for pipeline in (SmallChunkPipeline, UnboundedPipeline):
        name = f"{pipeline.__module__}.{pipeline.__qualname__}"
        with zarr.config.set({"codec_pipeline.path": name}):
            arrays[pipeline.__name__] = zarr.open_array(store, path="a", mode="r")
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, stored in arrays.items():
            start = time.process_time()
            stored[:]
            seconds = time.process_time() - start
            best[name] = min(seconds, best.get(name, seconds))
    return {
        "bounded": best[SmallChunkPipeline.__name__],
        "unbounded": best[UnboundedPipeline.__name__],
    }


def main() -> None:
    """Measure all codecs and sizes."""
    register_pipeline(UnboundedPipeline)
    folder = Path(sys.argv[1])
    results = {
        f"{title}, {name}": measure(folder / f"{title}-{name}", codec, *size)
        for title, size in SIZES.items()
        for name, codec in CODECS.items()
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
