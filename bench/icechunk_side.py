"""Measurements of the reference implementation; runs without icefloe.

``python icechunk_side.py manifest PATTERN FOLDER`` or ``python icechunk_side.py snapshot FOLDER``;
prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import icechunk
import zarr
from zarr.core.buffer import default_buffer_prototype

from references import GRID, format_location, make_indices, make_ranges

RUNS = 2


def create_repository(folder: Path) -> Any:
    """Create an empty repository."""
    shutil.rmtree(folder, ignore_errors=True)
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))


def commit(session: Any) -> float:
    """Commit, and return the seconds it took."""
    start = time.perf_counter()
    session.commit("bench")
    return time.perf_counter() - start


def measure_manifest(pattern: str, folder: Path) -> dict[str, Any]:
    """Commit a million virtual references."""
    offsets, lengths = (column.tolist() for column in make_ranges(pattern))
    specs = [
        icechunk.VirtualChunkSpec(index, format_location(index[0]), offset, length)
        for index, offset, length in zip(make_indices().tolist(), offsets, lengths, strict=True)
    ]
    seconds = []
    for run in range(RUNS):
        session = create_repository(folder / str(run)).writable_session("main")
        group = zarr.create_group(session.store)
        group.create_array("t2m", shape=GRID, chunks=(1, 1, 1), dtype="f4")
        session.store.set_virtual_refs("/t2m", specs, validate_containers=False)
        seconds.append(commit(session))
    files = list((folder / str(RUNS - 1) / "manifests").iterdir())
    return {"commit_seconds": min(seconds), "file": str(files[0]), "rss_mb": measure_peak_mb()}


def measure_snapshot(folder: Path, nodes: int = 10_000) -> dict[str, Any]:
    """Commit ten thousand arrays without chunks."""
    session = create_repository(folder).writable_session("main")
    array = zarr.create_array({}, shape=(100, 200, 300), chunks=(10, 20, 30), dtype="f4")
    metadata = json.dumps(array.metadata.to_dict(), default=str).encode()
    buffer = default_buffer_prototype().buffer.from_bytes(metadata)
    group = b'{"zarr_format":3,"node_type":"group","attributes":{}}'

    async def fill() -> None:
        await session.store.set("zarr.json", buffer.from_bytes(group))
        for number in range(nodes - 1):
            await session.store.set(f"array_{number:05d}/zarr.json", buffer)

    asyncio.run(fill())
    return {"commit_seconds": commit(session), "rss_mb": measure_peak_mb()}


def measure_peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1] == "manifest":
        print(json.dumps(measure_manifest(sys.argv[2], Path(sys.argv[3]))))
    else:
        print(json.dumps(measure_snapshot(Path(sys.argv[2]))))
