"""Benchmarks of a million virtual references, with mostly the same code for both libraries.

``python virtual_refs.py LIBRARY WORK FOLDER`` prints JSON; the library is icefloe or icechunk.
Icechunk versions without ``set_virtual_refs_arr`` use ``set_virtual_refs``.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from sessions import Clock

REFS, REFS_PER_FILE = 1_000_000, 1000
APPENDED, PER_MANIFEST = 10_000, 10_000
FEW, MANY = 100_000, 10_000_000

os.environ.setdefault("ICECHUNK_LOG", "error")


def make_locations(files: str) -> list[str]:
    """Return the location of each chunk, with one chunk per file or a thousand."""
    if files == "many":
        return [f"s3://bucket/data/era5/t2m/c/{number:07d}" for number in range(REFS)]
    return [f"s3://bucket/data/era5/t2m_{number // REFS_PER_FILE:05d}.nc" for number in range(REFS)]


def make_ranges(count: int) -> tuple[Any, Any]:
    """Return offsets and lengths of chunks."""
    offsets = np.arange(count, dtype=np.uint64) % np.uint64(REFS_PER_FILE) * np.uint64(40_000)
    return offsets, np.full(count, 40_000, np.uint64)


def create_array(repository: Any, count: int) -> Any:
    """Return a session with a new array of ``count`` chunks."""
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(count,), chunks=(1,), dtype="i4", compressors=None)
    return session


def set_refs(library: Any, folder: Path, files: str = "few") -> dict[str, float]:
    """Set and commit a million references, then find the distinct locations."""
    storage = library.local_filesystem_storage(str(folder))
    session = create_array(library.Repository.create(storage), REFS)
    names = make_locations(files)
    offsets, lengths = make_ranges(REFS)
    clock = Clock()
    if hasattr(session.store, "set_virtual_refs_arr"):
        with clock.measure("set"):
            session.store.set_virtual_refs_arr(
                "a", (REFS,), names, offsets, lengths, validate_containers=False
            )
            session.commit("bench")
    else:
        specs = [
            library.VirtualChunkSpec([number], name, offset, length)
            for number, (name, offset, length) in enumerate(
                zip(names, offsets.tolist(), lengths.tolist(), strict=True)
            )
        ]
        with clock.measure("set"):
            session.store.set_virtual_refs("a", specs, validate_containers=False)
            session.commit("bench")
    clock["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    expected = len(set(names))
    del names, session
    reader = library.Repository.open(storage).readonly_session("main")
    with clock.measure("locations"):
        if hasattr(reader, "virtual_locations"):
            locations = reader.virtual_locations()
        else:
            locations = set(reader.all_virtual_chunk_locations())
    assert len(locations) == expected
    return clock


def set_refs_of_files(library: Any, folder: Path) -> dict[str, float]:
    """Set and commit a million references, each to its own file."""
    return set_refs(library, folder, "many")


def append_refs(library: Any, folder: Path) -> dict[str, float]:
    """Append to an array with few references, and to one with a hundred times as many."""
    clock = Clock()
    for name, count in (("few", FEW), ("many", MANY)):
        measured = _measure_append(library, folder / name, count)
        clock |= {f"{name}_{what}": value for what, value in measured.items()}
    return clock


def _measure_append(library: Any, folder: Path, count: int) -> dict[str, float]:
    sizes = {
        library.ManifestSplitCondition.AnyArray(): {
            library.ManifestSplitDimCondition.Any(): PER_MANIFEST
        }
    }
    splitting = library.ManifestSplittingConfig.from_dict(sizes)
    config = library.RepositoryConfig(manifest=library.ManifestConfig(splitting=splitting))
    storage = library.local_filesystem_storage(str(folder))
    session = create_array(library.Repository.create(storage, config), count)
    offsets, lengths = make_ranges(count)
    files = np.array([f"s3://bucket/t2m_{number:05d}.nc" for number in range(count // 1000)])
    session.store.set_virtual_refs_arr(
        "a", (count,), np.repeat(files, 1000), offsets, lengths, validate_containers=False
    )
    session.commit("bench")
    before = _list_sizes(folder)
    clock = Clock()
    start = time.process_time()
    with clock.measure("append"):
        session = library.Repository.open(storage).writable_session("main")
        zarr.open_array(session.store, path="a").resize((count + APPENDED,))
        session.store.set_virtual_refs_arr(
            "a",
            (APPENDED,),
            np.repeat(files[:10], 1000),
            offsets[:APPENDED],
            lengths[:APPENDED],
            arr_offset=(count,),
            validate_containers=False,
        )
        session.commit("append")
    clock["append"] = time.process_time() - start
    written = {name: size for name, size in _list_sizes(folder).items() if before.get(name) != size}
    clock["bytes"] = sum(written.values())
    clock["manifests"] = sum("manifests" in name for name in written)
    return clock


def _list_sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


WORK = {
    "set_refs": set_refs,
    "set_refs_of_files": set_refs_of_files,
    "append_refs": append_refs,
}

if __name__ == "__main__":
    name, work, target = sys.argv[1:]
    print(json.dumps(WORK[work](importlib.import_module(name), Path(target))))
