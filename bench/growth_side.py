"""Operations at several sizes, with the same code for both libraries.

``python growth_side.py LIBRARY WORK ARGUMENTS`` prints JSON, by operation the seconds of wall time
and of processor time, and other values. The library is icefloe or icechunk, the arguments are JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zstandard
from zarr.core.buffer import default_buffer_prototype
from zarr.core.group import GroupMetadata
from zarr.core.sync import sync

from latency_side import Clock, make_storage, take_median
from metadata_files import HEADER_SIZE, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ["ICECHUNK_LOG"] = "off"

OPENINGS, COMMITS, WARM_COMMITS = 7, 12, 3
GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{}}'
Measured = dict[str, Any]


def get_storage(library: Any, folder: str) -> Any:
    """Return a storage that does not flush to disk."""
    return make_storage(library, {"path": folder, "durable": False})


def open_repository(library: Any, folder: str) -> Any:
    """Open a repository with empty caches."""
    return library.Repository.open(get_storage(library, folder))


def create_session(library: Any, folder: str) -> Any:
    """Create a repository, and return its first session."""
    return library.Repository.create(get_storage(library, folder)).writable_session("main")


def get_peak_mb() -> float:
    """Return the peak memory of this process in MB; ``ru_maxrss`` would include its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_history(library: Any, folder: str) -> Measured:
    """Open, read, list the log and commit in a repository with many commits."""
    clock = Clock()
    openings: list[Clock] = []
    repo = Path(folder, "repo")
    decompressor = zstandard.ZstdDecompressor()
    for _ in range(OPENINGS):
        openings.append(Clock())
        open_and_read(library, folder, openings[-1])
        if repo.exists():  # what an opening needs at least, on the same machine at the same time
            with openings[-1].measure("read_repo"):
                frame = memoryview(repo.read_bytes())[HEADER_SIZE:]
                size = zstandard.frame_content_size(frame)
                decompressor.decompress(frame, max_output_size=max(size, 0) or 1 << 24)
    measured: Measured = {
        operation: take_median([opening[operation] for opening in openings])
        for operation in openings[0]
    }
    gc.collect()
    blocks = sys.getallocatedblocks()
    kept = open_and_read(library, folder, Clock())
    gc.collect()
    measured["blocks"] = sys.getallocatedblocks() - blocks
    del kept
    with clock.measure("log"):
        for _ in open_repository(library, folder).ancestry(branch="main"):
            pass
    measured["log"] = clock["log"]
    repository = open_repository(library, folder)
    commits = []
    for number in range(WARM_COMMITS + COMMITS):
        with clock.measure("commit"):
            session = repository.writable_session("main")
            zarr.open_array(session.store, path="a")[1] = number
            session.commit("chunk")
        commits.append(clock["commit"])
    measured["commit"] = take_median(commits[WARM_COMMITS:])
    if repo.exists():
        measured["read_repo"] = measured["read_repo"][1]
        measured["write_repo"] = measure_writing(repo)
    return measured


def measure_writing(repo: Path) -> float:
    """Return the processor seconds of compressing and writing ``repo`` without encoding it."""
    header, content = unpack(repo.read_bytes())
    compressor = zstandard.ZstdCompressor(3)
    writings = []
    for _ in range(OPENINGS):
        clock = Clock()
        with clock.measure("write"):
            repo.with_name("copy").write_bytes(header + compressor.compress(content))
        writings.append(clock["write"])
    return take_median(writings)[1]


def open_and_read(library: Any, folder: str, clock: Clock) -> tuple[Any, ...]:
    """Open a repository and read one chunk."""
    with clock.measure("open"):
        repository = open_repository(library, folder)
    with clock.measure("session"):
        session = repository.writable_session("main")
    with clock.measure("read"):
        array = zarr.open_array(session.store, path="b", mode="r")
        assert array[0] == 1
    return repository, session, array


def measure_rebase(library: Any, folder: str, *, commits: int) -> Measured:
    """Rebase over many commits."""
    repository = open_repository(library, folder)
    snapshots = [snapshot.id for snapshot in repository.ancestry(branch="main")]
    branch = f"from-{library.__name__}-{commits}"
    repository.create_branch(branch, snapshots[commits])
    session = open_repository(library, folder).writable_session(branch)
    zarr.open_array(session.store, path="b")[1] = 1
    repository.reset_branch(branch, snapshots[0])
    clock = Clock()
    with clock.measure("rebase"):
        session.rebase(library.ConflictDetector())
    return clock


def measure_expiration(library: Any, folder: str) -> Measured:
    """Expire all snapshots except the newest and the first."""
    repository = open_repository(library, folder)
    clock = Clock()
    with clock.measure("expire"):
        expired = repository.expire_snapshots(datetime.now(UTC))
    return clock | {"expired": len(expired)}


def measure_hierarchy(library: Any, folder: str, *, count: int) -> Measured:
    """Create arrays with ``create_hierarchy``."""
    session = create_session(library, folder)
    metadata = zarr.create_array({}, shape=(100,), chunks=(10,), dtype="f4").metadata
    nodes: dict[str, Any] = {"": GroupMetadata()}
    nodes |= {f"array_{number}": metadata for number in range(count)}
    clock = Clock()
    with clock.measure("create"):
        for _ in zarr.create_hierarchy(store=session.store, nodes=nodes):
            pass
        session.commit("arrays")
    return clock


def measure_arrays(library: Any, folder: str, *, count: int) -> Measured:
    """Create arrays with ``create_array`` in a loop."""
    session = create_session(library, folder)
    clock = Clock()
    with clock.measure("create"):
        group = zarr.create_group(session.store)
        for number in range(count):
            group.create_array(f"array_{number}", shape=(100,), chunks=(10,), dtype="f4")
        session.commit("arrays")
    return clock


def measure_path(library: Any, folder: str, *, count: int) -> Measured:
    """Create groups inside one another."""
    session = create_session(library, folder)
    keys = ["g/" * depth + "zarr.json" for depth in range(count)]
    clock = Clock()
    with clock.measure("create"):
        sync(set_keys(session.store, dict.fromkeys(keys, GROUP)))
        session.commit("groups")
        reader = open_repository(library, folder).readonly_session("main")
        zarr.open_group(reader.store, path="/".join("g" * (count - 1)), mode="r")
    return clock


async def set_keys(store: Any, documents: dict[str, bytes]) -> None:
    """Write documents below Zarr keys."""
    make_buffer = default_buffer_prototype().buffer.from_bytes
    for key, document in documents.items():
        await store.set(key, make_buffer(document))


def make_document() -> bytes:
    """Return the metadata document of an array with four chunks of one item each."""
    array = zarr.create_array({}, shape=(4,), chunks=(1,), dtype="i4", compressors=None)
    return json.dumps(array.metadata.to_dict(), default=str).encode()


def build_nodes(library: Any, folder: str, *, count: int, kind: str = "array") -> Measured:
    """Commit many nodes, and one array with a chunk."""
    session = create_session(library, folder)
    document = GROUP if kind == "group" else make_document()
    documents = {"zarr.json": GROUP, "first/zarr.json": make_document(), "first/c/0": b"1234"}
    documents |= {f"node_{number:07d}/zarr.json": document for number in range(count)}
    sync(set_keys(session.store, documents))
    session.commit("nodes")
    return {}


def measure_nodes(library: Any, folder: str) -> Measured:
    """Open a repository with many nodes and read one array."""
    clock = Clock()
    samples = []
    for _ in range(OPENINGS):
        with clock.measure("open"):
            open_and_read_first(library, folder)
        samples.append(clock["open"])
    return {"open": take_median(samples), "mb": get_peak_mb()}


def open_and_read_first(library: Any, folder: str) -> None:
    """Open a repository and read the first chunk of the array ``first``."""
    session = open_repository(library, folder).readonly_session("main")
    assert zarr.open_array(session.store, path="first", mode="r")[0] != 0


def measure_many_nodes(library: Any, folder: str) -> Measured:
    """Open a repository with very many nodes once, in a process that has opened no other."""
    clock = Clock()
    with clock.measure("open"):
        open_and_read_first(library, folder)
    return clock | {"mb": get_peak_mb()}


def build_refs(library: Any, folder: str, *, count: int) -> Measured:
    """Commit virtual references, each to its own file."""
    session = create_session(library, folder)
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(count,), chunks=(1,), dtype="i4", compressors=None)
    locations = [f"s3://bucket/data/era5/t2m/c/{number:08d}" for number in range(count)]
    offsets, lengths = np.zeros(count, np.uint64), np.full(count, 40_000, np.uint64)
    session.store.set_virtual_refs_arr(
        "a", (count,), locations, offsets, lengths, validate_containers=False
    )
    session.commit("references")
    return {}


def measure_ref(library: Any, folder: str, *, count: int) -> Measured:
    """Look up one reference, with empty caches."""
    clock = Clock()
    with clock.measure("read"):
        session = open_repository(library, folder).readonly_session("main")
        kind = session.chunk_type("/a", [count // 2])
    assert "virtual" in str(kind).lower()
    return clock | {"mb": get_peak_mb()}


def measure_collection(library: Any, folder: str, *, count: int) -> Measured:
    """Collect many chunks that no snapshot refers to."""
    session = create_session(library, folder)
    zarr.create_group(session.store)
    session.commit("group")
    chunks = Path(folder, "chunks")
    chunks.mkdir(exist_ok=True)
    for number in range(count):
        (chunks / f"{number:019d}0").write_bytes(b"1234")
    repository = open_repository(library, folder)
    clock = Clock()
    with clock.measure("collect"):
        summary = repository.garbage_collect(datetime.now(UTC))
    assert summary.chunks_deleted == count, summary
    return clock | {"mb": get_peak_mb()}


def measure_changes(library: Any, folder: str, *, count: int) -> Measured:
    """List the changes of a session with many chunks, and pickle such a fork."""
    session = create_session(library, folder)
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(count,), chunks=(1,), dtype="i4", compressors=None)
    session.commit("array")
    repository = open_repository(library, folder)
    chunks = {f"a/c/{number}": number.to_bytes(4, "little") for number in range(count)}
    session = repository.writable_session("main")
    sync(set_keys(session.store, chunks))
    clock = Clock()
    with clock.measure("status"):
        session.status()
    session.discard_changes()
    fork = session.fork()
    sync(set_keys(fork.store, chunks))
    with clock.measure("pickle"):
        data = pickle.dumps(fork)
    return clock | {"bytes": len(data)}


WORK: dict[str, Callable[..., Measured]] = {
    "history": measure_history,
    "rebase": measure_rebase,
    "expiration": measure_expiration,
    "hierarchy": measure_hierarchy,
    "arrays": measure_arrays,
    "path": measure_path,
    "build_nodes": build_nodes,
    "nodes": measure_nodes,
    "many_nodes": measure_many_nodes,
    "build_refs": build_refs,
    "ref": measure_ref,
    "collection": measure_collection,
    "changes": measure_changes,
}


def warm_up(library: Any) -> None:
    """Write and read a small repository, so that imports and threads are not measured."""
    storage = library.in_memory_storage()
    session = library.Repository.create(storage).writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("a", shape=(2,), chunks=(1,), dtype="i4")[0] = 1
    session.status()
    session.commit("chunk")
    session = library.Repository.open(storage).readonly_session("main")
    assert zarr.open_array(session.store, path="a", mode="r")[0] == 1


def main() -> None:
    """Run one work and print what it measured."""
    name, work, arguments = sys.argv[1:]
    library = importlib.import_module(name)
    warm_up(library)
    print(json.dumps(WORK[work](library, **json.loads(arguments))), flush=True)
    os._exit(0)  # Icechunk may crash when it shuts down


if __name__ == "__main__":
    main()
