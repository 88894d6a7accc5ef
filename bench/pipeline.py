"""Jobs of the pipeline, compared with other tools that write the same files to a repository.

``python pipeline.py WORK FOLDER [COUNT]`` prints JSON. Source files are written to ``FOLDER`` on
first use, and each benchmark creates a repository there. Java and Python start before the
measurement.

``ingest_icechunk``, ``ingest_xarray``, ``ingest_single``, ``ingest_core`` and ``ingest_spark`` copy
the same files into the same chunks: with xarray, dask and icechunk; without dask's threads; with
one process of icefloe; with one process on one core; and with Spark on two cores.
``virtualize_virtualizarr`` and ``virtualize_spark`` create references to many small files;
``nothing_to_do`` appends files that were appended before. ``refresh`` refreshes a group of many
files of which one changed, in one process. ``driver_memory`` virtualizes a hundred synthetic files
with ``COUNT`` references in total.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INGESTED, LATS, LONS, STEPS = 192, 361, 720, 4
CHUNKS = {"time": 32, "lat": 91, "lon": 180}
SMALL_FILES = 2_000
SYNTHETIC_FILES = 100
REPEATS = 5
FEW_REFS = 100_000


def write_file(path: Path, number: int, shape: tuple[int, int, int]) -> Path:
    """Write one file of an archive: two compressed variables with a chunk per step."""
    steps, lats, lons = shape
    rng = np.random.default_rng(number)
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": None, "lat": lats, "lon": lons}
        file.resize_dimension("time", steps)
        first = number * steps
        times = file.create_variable("time", ("time",), "i4", data=np.arange(first, first + steps))
        times.attrs["units"] = "hours since 2024-01-01"
        for name, size in (("lat", lats), ("lon", lons)):
            file.create_variable(name, (name,), "f4", data=np.arange(size, dtype="f4"))
        for name in ("t2m", "rain"):
            values = rng.integers(0, 4000, shape).astype("f4") / 8  # compresses like weather data
            file.create_variable(
                name,
                ("time", "lat", "lon"),
                data=values,
                chunks=(1, lats, lons),
                compression="gzip",
                compression_opts=1,
                shuffle=True,
            )
    return path


def write_archive(folder: Path, count: int, shape: tuple[int, int, int]) -> list[Path]:
    """Return the files of an archive, writing those that do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:05}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            write_file(path, number, shape)
    return paths


def create_repository(library: Any, path: Path, files: Path) -> Any:
    """Create a repository with a container for files."""
    prefix = f"{files.absolute().as_uri()}/"
    config = library.RepositoryConfig.default()
    store = library.local_filesystem_store(str(files.absolute()))
    config.set_virtual_chunk_container(library.VirtualChunkContainer(prefix, store))
    authorization = {prefix: getattr(library.Credentials, "LocalFileSystemAccess", lambda: None)()}
    storage = library.local_filesystem_storage(str(path))
    return library.Repository.create(storage, config, authorize_virtual_chunk_access=authorization)


@contextmanager
def measure(measured: dict[str, float]) -> Iterator[None]:
    """Measure the seconds of a block."""
    start = time.monotonic()
    yield
    measured["seconds"] = time.monotonic() - start


def warm_spark() -> Any:
    """Start Spark on two cores, with workers that have imported their modules."""
    from icefloe.spark.engine.local_session import spark_session  # noqa: PLC0415
    from icefloe.spark.engine.tasks import run_tasks  # noqa: PLC0415

    spark = spark_session("local[2]")
    run_tasks(spark, list(range(4)), warm_python)
    return spark


def warm_python(_: int = 0) -> None:
    """Import the modules of parsing and copying, so that imports are not measured."""
    for name in ("zarr", "icefloe.pipeline.jobs.ingest", "icefloe.virtual.parsers.hdf5"):
        import_module(name)


def ingest_icechunk(folder: Path, count: int, *, scheduler: str) -> dict[str, float]:
    """Open the files with xarray and write them with dask, in two threads or sequentially."""
    import dask  # noqa: PLC0415
    import icechunk  # noqa: PLC0415
    import xarray  # noqa: PLC0415

    paths = write_archive(folder / "files", count, (STEPS, LATS, LONS))
    repository = create_repository(
        icechunk, folder / f"ingest-icechunk-{scheduler}", folder / "files"
    )
    measured: dict[str, float] = {}
    with measure(measured), dask.config.set(scheduler=scheduler, num_workers=2):
        dataset = xarray.open_mfdataset(
            paths,
            engine="h5netcdf",
            combine="nested",
            concat_dim="time",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="override",
            decode_cf=False,
            chunks={},
        ).chunk(CHUNKS)
        for variable in dataset.variables.values():
            variable.encoding.clear()
        session = repository.writable_session("main")
        # As icechunk.xarray.to_icechunk, which does not support all xarray versions.
        dataset.to_zarr(session.store, zarr_format=3, consolidated=False, mode="w")
        session.commit("bench")
    return measured


def ingest_core(folder: Path, count: int) -> dict[str, float]:
    """Ingest with icefloe in one process on one core; codecs would use threads otherwise."""
    os.sched_setaffinity(0, {0})
    return ingest_icefloe(folder, count, on_spark=False, name="ingest-core")


def ingest_icefloe(folder: Path, count: int, *, on_spark: bool, name: str) -> dict[str, float]:
    """Ingest with icefloe."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.ingest import ingest  # noqa: PLC0415

    paths = write_archive(folder / "files", count, (STEPS, LATS, LONS))
    repository = create_repository(icefloe, folder / name, folder / "files")
    warm_python()
    spark = warm_spark() if on_spark else None
    measured: dict[str, float] = {}
    with measure(measured):
        ingest(spark, repository, paths, chunks=CHUNKS)
    return measured


def virtualize_virtualizarr(folder: Path, count: int) -> dict[str, float]:
    """Parse files sequentially, combine and write references with VirtualiZarr."""
    import icechunk  # noqa: PLC0415
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415
    from obstore.store import LocalStore  # noqa: PLC0415
    from virtualizarr import open_virtual_mfdataset  # noqa: PLC0415
    from virtualizarr.parsers import HDFParser  # noqa: PLC0415

    paths = write_archive(folder / "small", count, (1, 24, 48))
    repository = create_repository(icechunk, folder / "virtualizarr", folder / "small")
    measured: dict[str, float] = {}
    with measure(measured):
        dataset = open_virtual_mfdataset(
            [path.absolute().as_uri() for path in paths],
            registry=ObjectStoreRegistry({"file://": LocalStore()}),
            parser=HDFParser(),
            combine="nested",
            concat_dim="time",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="override",
            loadable_variables=["time", "lat", "lon"],
            decode_times=False,
            parallel=False,
        )
        session = repository.writable_session("main")
        dataset.vz.to_icechunk(session.store)
        session.commit("bench")
    return measured


def virtualize_spark(folder: Path, count: int) -> dict[str, float]:
    """Virtualize with icefloe on two cores."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    paths = write_archive(folder / "small", count, (1, 24, 48))
    repository = create_repository(icefloe, folder / "virtualize-spark", folder / "small")
    warm_python()
    spark = warm_spark()
    measured: dict[str, float] = {}
    with measure(measured):
        virtualize(spark, repository, paths)
    return measured


def append_existing_files(folder: Path, count: int) -> dict[str, float]:
    """Append files that the repository already contains."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.append import append  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    paths = write_archive(folder / "small", count, (1, 24, 48))
    repository = create_repository(icefloe, folder / "nothing-to-do", folder / "small")
    spark = warm_spark()
    virtualize(spark, repository, paths)
    measured: dict[str, float] = {}
    with measure(measured):
        report: Any = append(spark, repository, paths)
    assert not report.is_new
    return measured


def refresh_one_file(folder: Path, count: int) -> dict[str, float]:
    """Refresh a group of many files after one of them changed, and append one file."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.append import append  # noqa: PLC0415
    from icefloe.pipeline.jobs.refresh import refresh  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    paths = write_archive(folder / "small", count + REPEATS, (1, 24, 48))
    repository = create_repository(icefloe, folder / "refresh", folder / "small")
    virtualize(None, repository, paths[:count])
    seconds: dict[str, list[float]] = {"append": [], "refresh": []}
    for number in range(REPEATS):
        started = time.perf_counter()
        append(None, repository, paths[count + number])
        seconds["append"].append(time.perf_counter() - started)
        modified = paths[number].stat().st_mtime + 60
        os.utime(paths[number], (modified, modified))
        started = time.perf_counter()
        report: Any = refresh(None, repository)
        seconds["refresh"].append(time.perf_counter() - started)
        assert report.files == 1
    return {name: min(times) for name, times in seconds.items()}


class SyntheticParser:
    """A parser that returns ``refs`` references, in one row, for files that do not exist."""

    def __init__(self, refs: int) -> None:
        self.refs = refs

    def __call__(self, *, url: str, registry: Any) -> Any:
        """Return a synthetic file."""
        from virtualizarr.manifests import (  # noqa: PLC0415 - in the worker
            ChunkManifest,
            ManifestArray,
            ManifestGroup,
            ManifestStore,
        )
        from virtualizarr.manifests.utils import create_v3_array_metadata  # noqa: PLC0415

        shape = (1, self.refs)
        offsets = (np.arange(self.refs, dtype=np.uint64) * np.uint64(1_000)).reshape(shape)
        manifest = ChunkManifest.from_arrays(
            paths=np.full(shape, url, dtype=np.dtypes.StringDType()),
            offsets=offsets,
            lengths=np.full(shape, 1_000, np.uint64),
        )
        metadata = create_v3_array_metadata(
            shape=(1, self.refs),
            data_type=np.dtype("f4"),
            chunk_shape=(1, 1),
            fill_value=0,
            codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
            dimension_names=["time", "x"],
        )
        array = ManifestArray(metadata=metadata, chunkmanifest=manifest)
        return ManifestStore(ManifestGroup(arrays={"a": array}), registry=registry)


def measure_driver_memory(folder: Path, count: int) -> dict[str, float]:
    """Return the peak memory of the driver's Python process while virtualizing."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    files = folder / "nowhere"
    repository = create_repository(icefloe, folder / f"driver-{count}", files)
    spark = warm_spark()
    urls = [f"{files.absolute().as_uri()}/{number}.any" for number in range(SYNTHETIC_FILES)]
    parser = SyntheticParser(count // SYNTHETIC_FILES)
    measured: dict[str, float] = {}
    with measure(measured):
        report: Any = virtualize(
            spark,
            repository,
            urls,
            parse_options={"parser": parser, "loadable_variables": ()},
        )
    assert report.chunks == count
    measured["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return measured


WORK: dict[str, tuple[Callable[[Path, int], dict[str, float]], int]] = {
    "ingest_icechunk": (partial(ingest_icechunk, scheduler="threads"), INGESTED),
    "ingest_xarray": (partial(ingest_icechunk, scheduler="synchronous"), INGESTED),
    "ingest_single": (partial(ingest_icefloe, on_spark=False, name="ingest-single"), INGESTED),
    "ingest_core": (ingest_core, INGESTED),
    "ingest_spark": (partial(ingest_icefloe, on_spark=True, name="ingest-spark"), INGESTED),
    "virtualize_virtualizarr": (virtualize_virtualizarr, SMALL_FILES),
    "virtualize_spark": (virtualize_spark, SMALL_FILES),
    "nothing_to_do": (append_existing_files, SMALL_FILES),
    "refresh": (refresh_one_file, SMALL_FILES),
    "driver_memory": (measure_driver_memory, FEW_REFS),
}


def main(work: str, folder: str, count: str | None = None) -> None:
    """Run one benchmark, and print its measurements."""
    function, default = WORK[work]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs outside the Zarr specification
        measured = function(Path(folder), default if count is None else int(count))
    print(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
