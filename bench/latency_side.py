"""Small operations and small files, with the same code for both libraries.

``python latency_side.py LIBRARY`` reads lines of JSON, ``{"work": …, "arguments": {…}}``, and
prints one line of JSON for each: the seconds of wall time and of processor time of each operation.
The library is icefloe or icechunk. A place is a dictionary: ``{"path": …, "durable": …}``, or the
options of an S3 server.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPENINGS = 5

os.environ.setdefault("ICECHUNK_LOG", "error")


Seconds = tuple[float, float]  # wall time and processor time


class Clock(dict[str, Seconds]):
    """Seconds of wall time and of processor time of each operation."""

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Measure the time of a block."""
        start, processor_start = time.perf_counter(), time.process_time()
        yield
        self[operation] = time.perf_counter() - start, time.process_time() - processor_start


def take_median(samples: list[Seconds]) -> Seconds:
    """Return the medians of wall time and of processor time."""
    return median(wall for wall, _ in samples), median(processor for _, processor in samples)


def make_storage(library: Any, place: dict[str, Any]) -> Any:
    """Return a new storage, so that nothing of an earlier one is cached."""
    if "path" not in place:
        return library.s3_storage(
            region="us-east-1", allow_http=True, force_path_style=True, **place
        )
    make = library.local_filesystem_storage
    has_durable = "durable" in inspect.signature(make).parameters
    options = {"durable": place["durable"]} if has_durable else {}
    return make(place["path"], **options)


def create_arrays(library: Any, place: dict[str, Any], spec_version: int, num_chunks: int) -> Any:
    """Create a repository with the arrays ``a`` and ``b``."""
    repository = library.Repository.create(make_storage(library, place), spec_version=spec_version)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    for name in "ab":
        array = group.create_array(
            name, shape=(num_chunks,), chunks=(1,), dtype="i4", compressors=None
        )
        array[0] = 1
    session.commit("arrays")
    return repository


def commit_chunks(repository: Any, first: int, count: int) -> None:
    """Make commits that change one chunk each."""
    for number in range(first, first + count):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="a")[number] = number
        session.commit(f"chunk {number}")


def measure_history(
    library: Any,
    *,
    place: dict[str, Any],
    build_place: dict[str, Any],
    spec_version: int,
    built: int,
    commits: int,
    behind: int,
) -> Clock:
    """Commit, and measure what reads the history.

    The first ``built`` commits are not measured, and go to ``build_place``: the same repository,
    which may be reached faster there. So do the ``behind`` commits over which a session rebases.
    """
    clock = Clock()
    builder = create_arrays(library, build_place, spec_version, built + commits + behind)
    commit_chunks(builder, 0, built)
    repository = library.Repository.open(make_storage(library, place))
    with clock.measure("commits"):
        commit_chunks(repository, built, commits)
    with clock.measure("log"):
        opened = library.Repository.open(make_storage(library, place))
        snapshots = list(opened.ancestry(branch="main"))
    assert len(snapshots) == built + commits + 2
    openings = []
    for _ in range(OPENINGS):
        with clock.measure("open"):
            opened = library.Repository.open(make_storage(library, place))
            session = opened.readonly_session("main")
            value = zarr.open_array(session.store, path="b", mode="r")[0]
        assert value == 1
        openings.append(clock["open"])
    clock["open"] = take_median(openings)
    session = library.Repository.open(make_storage(library, place)).writable_session("main")
    zarr.open_array(session.store, path="b")[1] = 1
    commit_chunks(builder, built + commits, behind)
    with clock.measure("rebase"):
        session.rebase(library.ConflictDetector())
    session.commit("after the rebase")
    collector = library.Repository.open(make_storage(library, place))
    with clock.measure("collect"):
        collector.garbage_collect(datetime.now(UTC))
    return clock


def measure_chunks(
    library: Any, *, place: dict[str, Any], spec_version: int, count: int, megabytes: int
) -> Clock:
    """Write large chunks and read them."""
    repository = library.Repository.create(make_storage(library, place), spec_version=spec_version)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    items = megabytes << 20
    array = group.create_array(
        "a", shape=(count * items,), chunks=(items,), dtype="u1", compressors=None
    )
    data = np.random.default_rng(0).integers(1, 256, count * items, np.uint8)
    clock = Clock()
    with clock.measure("write"):
        array[:] = data
        session.commit("chunks")
    reader = library.Repository.open(make_storage(library, place)).readonly_session("main")
    array = zarr.open_array(reader.store, path="a", mode="r")
    with clock.measure("read"):
        values = array[:]
    assert np.array_equal(np.asarray(values), data)
    if "path" in place and megabytes > 1:
        shutil.rmtree(place["path"])  # else the next measurement waits for the disk
    return clock


def measure_arrays(library: Any, *, place: dict[str, Any], spec_version: int, count: int) -> Clock:
    """Create arrays through zarr in one session."""
    repository = library.Repository.create(make_storage(library, place), spec_version=spec_version)
    session = repository.writable_session("main")
    clock = Clock()
    with clock.measure("create"):
        group = zarr.create_group(session.store)
        for number in range(count):
            group.create_array(f"array_{number}", shape=(100,), chunks=(10,), dtype="f4")
        session.commit("arrays")
    return clock


def measure_xarray(library: Any, *, place: dict[str, Any], spec_version: int) -> Clock:
    """Write a dataset of 52 MB in four variables."""
    import xarray as xr  # noqa: PLC0415

    to_repository = importlib.import_module(f"{library.__name__}.xarray").to_icechunk
    rng = np.random.default_rng(0)
    variables = {
        name: (("time", "lat", "lon"), rng.random((52, 250, 250), np.float32))
        for name in ("u", "v", "t", "q")
    }
    dataset = xr.Dataset(variables)
    repository = library.Repository.create(make_storage(library, place), spec_version=spec_version)
    clock = Clock()
    with clock.measure("write"):
        session = repository.writable_session("main")
        to_repository(dataset, session)
        session.commit("dataset")
    return clock


WORK: dict[str, Callable[..., Clock]] = {
    "history": measure_history,
    "chunks": measure_chunks,
    "arrays": measure_arrays,
    "xarray": measure_xarray,
}


def main() -> None:
    """Measure until the input ends."""
    library = importlib.import_module(sys.argv[1])
    results = sys.stdout
    sys.stdout = sys.stderr  # libraries may print
    for line in sys.stdin:
        request = json.loads(line)
        measured = WORK[request["work"]](library, **request["arguments"])
        print(json.dumps(measured), file=results, flush=True)


if __name__ == "__main__":
    main()
