"""Benchmarks of a million references in each generation of the format.

``python generations.py GENERATION KIND FOLDER`` prints JSON. KIND is native (each chunk in its own
object), virtual (a thousand chunks in each of a thousand files) or files (each chunk in its own
file).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe.format.generation import get_generation
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.columns import make_constant
from icefloe.model.manifest import ChunkPayloads, allocate_columns
from icefloe.model.path import Path as NodePath
from icefloe.model.strings import EMPTY, Strings

REFS, REFS_PER_FILE = 1_000_000, 1000
KINDS = ("native", "virtual", "files")
METADATA_FOLDERS = ("snapshots", "manifests", "transactions", "s", "a", "i", "m")


def make_payloads(kind: str, id_size: int) -> ChunkPayloads:
    """Return a million references."""
    rng = np.random.default_rng(0)
    numbers = np.arange(REFS)
    lengths = rng.integers(20_000, 60_000, REFS).astype(np.uint64)
    if kind == "native":
        columns = allocate_columns(REFS, id_size) | {
            "kind": make_constant(ChunkKind.NATIVE, REFS, np.uint8),
            "chunk_id": rng.integers(0, 256, (REFS, id_size), np.uint8),
            "length": lengths,
        }
        inline = np.zeros(0, np.uint8)
        return ChunkPayloads(**columns, locations=EMPTY, etags=EMPTY, inline=inline)
    if kind == "virtual":
        codes = (numbers // REFS_PER_FILE).astype(np.int32)
        names = [f"s3://bucket/era5/t2m_{file:05d}.nc" for file in range(REFS // REFS_PER_FILE)]
        ends = np.cumsum(lengths.reshape(-1, REFS_PER_FILE), axis=1).reshape(-1)
        return ChunkPayloads.make_virtual(codes, Strings.of(names), ends - lengths, lengths)
    names = [f"s3://bucket/era5/t2m/c/{number:07d}" for number in range(REFS)]
    zeros = np.zeros(REFS, np.uint64)
    return ChunkPayloads.make_virtual(numbers.astype(np.int32), Strings.of(names), zeros, lengths)


def measure(generation: str, kind: str, folder: Path) -> dict[str, float]:
    """Commit a million references, and look up one in a newly opened repository."""
    storage = icefloe.local_filesystem_storage(str(folder))
    repository = icefloe.Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(100, REFS // 100), chunks=(1, 1), dtype="i4")
    coords = np.stack(np.unravel_index(np.arange(REFS), (100, REFS // 100)), 1).astype(np.uint32)
    values = get_generation(generation)
    payloads = make_payloads(kind, values.id_size)
    values.codec.encode_metadata({})  # imports pyarrow, once per process
    start = time.perf_counter()
    session.transaction.set_payloads(NodePath("/a"), coords, payloads)
    session.commit("references")
    commit = time.perf_counter() - start

    start = time.perf_counter()
    reader = icefloe.Repository.open(storage).readonly_session("main")
    found = reader.transaction.get_payload(NodePath("/a"), (57, 123))
    opened = time.perf_counter() - start
    assert found == payloads[57 * (REFS // 100) + 123]
    metadata_bytes = sum(
        file.stat().st_size for name in METADATA_FOLDERS for file in (folder / name).glob("*")
    )
    return {"commit": commit, "open": opened, "bytes": metadata_bytes}


if __name__ == "__main__":
    arguments: Any = sys.argv[1:]
    print(json.dumps(measure(arguments[0], arguments[1], Path(arguments[2]))))
