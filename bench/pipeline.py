"""Files into a repository: by the jobs of the pipeline, and by those who do it today.

``python pipeline.py WORK FOLDER [COUNT]`` prints JSON. ``FOLDER`` is where the files are, made on
first use, and where each work makes a repository. Java and Python start before the clock does.

``ingest_icechunk``, ``ingest_xarray``, ``ingest_single``, ``ingest_core`` and ``ingest_spark`` copy
the same files into the same chunks: xarray with dask and the icechunk wheel, the same without
dask's threads, one process of icefloe, one that has only one core, and Spark on two cores.
``virtualize_virtualizarr`` and ``virtualize_spark`` make references to many small files;
``nothing_to_do`` appends them when they are all there. ``driver_memory`` virtualizes a hundred
files that nobody wrote, with ``COUNT`` references in all.
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
MADE_UP_FILES = 100
FEW_REFS = 100_000


def write_file(path: Path, number: int, shape: tuple[int, int, int]) -> Path:
    """Write one file of an archive: two variables, compressed, a chunk for each step."""
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
            values = rng.integers(0, 4000, shape).astype("f4") / 8  # compresses as weather does
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


def archive(folder: Path, count: int, shape: tuple[int, int, int]) -> list[Path]:
    """Return the files of an archive; those that are not there are written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:05}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            write_file(path, number, shape)
    return paths


def create(library: Any, path: Path, files: Path) -> Any:
    """Create a repository that may refer to files."""
    prefix = f"{files.absolute().as_uri()}/"
    config = library.RepositoryConfig.default()
    store = library.local_filesystem_store(str(files.absolute()))
    config.set_virtual_chunk_container(library.VirtualChunkContainer(prefix, store))
    allowed = {prefix: getattr(library.Credentials, "LocalFileSystemAccess", lambda: None)()}
    storage = library.local_filesystem_storage(str(path))
    return library.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)


@contextmanager
def measured(found: dict[str, float]) -> Iterator[None]:
    """Measure seconds."""
    start = time.monotonic()
    yield
    found["seconds"] = time.monotonic() - start


def warm_spark() -> Any:
    """Start Spark on two cores, with workers that have imported what they need."""
    from icefloe.spark.engine.local_session import spark_session  # noqa: PLC0415
    from icefloe.spark.engine.tasks import run_tasks  # noqa: PLC0415

    spark = spark_session("local[2]")
    run_tasks(spark, list(range(4)), warm_python)
    return spark


def warm_python(_: int = 0) -> None:
    """Import what parsing and copying need: the others' imports are not counted either."""
    files = "icefloe.virtual.files"
    for name in ("zarr", "icefloe.pipeline.ingest", f"{files}.hdf5", f"{files}.loading"):
        import_module(name)


def ingest_icechunk(folder: Path, count: int, *, scheduler: str) -> dict[str, float]:
    """Let xarray open the files, and dask write them: in two threads, or one after the other."""
    import dask  # noqa: PLC0415
    import icechunk  # noqa: PLC0415
    import xarray  # noqa: PLC0415

    paths = archive(folder / "files", count, (STEPS, LATS, LONS))
    repository = create(icechunk, folder / f"ingest-icechunk-{scheduler}", folder / "files")
    found: dict[str, float] = {}
    with measured(found), dask.config.set(scheduler=scheduler, num_workers=2):
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
        # What its to_icechunk does, which not every xarray lets it do.
        dataset.to_zarr(session.store, zarr_format=3, consolidated=False, mode="w")
        session.commit("bench")
    return found


def ingest_core(folder: Path, count: int) -> dict[str, float]:
    """Ingest with icefloe in one process that has one core: codecs use threads where they can."""
    os.sched_setaffinity(0, {0})
    return ingest_ours(folder, count, on_spark=False, name="ingest-core")


def ingest_ours(folder: Path, count: int, *, on_spark: bool, name: str) -> dict[str, float]:
    """Ingest with icefloe."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.ingest import ingest  # noqa: PLC0415

    paths = archive(folder / "files", count, (STEPS, LATS, LONS))
    repository = create(icefloe, folder / name, folder / "files")
    warm_python()
    spark = warm_spark() if on_spark else None
    found: dict[str, float] = {}
    with measured(found):
        ingest(spark, repository, paths, chunks=CHUNKS)
    return found


def virtualize_virtualizarr(folder: Path, count: int) -> dict[str, float]:
    """Let VirtualiZarr parse files one after the other, combine and write references."""
    import icechunk  # noqa: PLC0415
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415
    from obstore.store import LocalStore  # noqa: PLC0415
    from virtualizarr import open_virtual_mfdataset  # noqa: PLC0415
    from virtualizarr.parsers import HDFParser  # noqa: PLC0415

    paths = archive(folder / "small", count, (1, 24, 48))
    repository = create(icechunk, folder / "virtualizarr", folder / "small")
    found: dict[str, float] = {}
    with measured(found):
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
    return found


def virtualize_spark(folder: Path, count: int) -> dict[str, float]:
    """Virtualize with icefloe on two cores."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    paths = archive(folder / "small", count, (1, 24, 48))
    repository = create(icefloe, folder / "virtualize-spark", folder / "small")
    warm_python()
    spark = warm_spark()
    found: dict[str, float] = {}
    with measured(found):
        virtualize(spark, repository, paths)
    return found


def nothing_to_do(folder: Path, count: int) -> dict[str, float]:
    """Append files that are all there already."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.append import append  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    paths = archive(folder / "small", count, (1, 24, 48))
    repository = create(icefloe, folder / "nothing-to-do", folder / "small")
    spark = warm_spark()
    virtualize(spark, repository, paths)
    found: dict[str, float] = {}
    with measured(found):
        report: Any = append(spark, repository, paths)
    assert not report.is_new
    return found


class MadeUp:
    """A parser that finds references in files that do not exist: one row of so many chunks."""

    def __init__(self, refs: int) -> None:
        self.refs = refs

    def __call__(self, *, url: str, registry: Any) -> Any:
        """Make up a file."""
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


def driver_memory(folder: Path, count: int) -> dict[str, float]:
    """Tell the most memory that the driver's Python had while it virtualized references."""
    import icefloe  # noqa: PLC0415
    from icefloe.pipeline.jobs.virtualize import virtualize  # noqa: PLC0415

    files = folder / "nowhere"
    repository = create(icefloe, folder / f"driver-{count}", files)
    spark = warm_spark()
    urls = [f"{files.absolute().as_uri()}/{number}.any" for number in range(MADE_UP_FILES)]
    parser = MadeUp(count // MADE_UP_FILES)
    found: dict[str, float] = {}
    with measured(found):
        report: Any = virtualize(
            spark,
            repository,
            urls,
            parse_options={"parser": parser, "loadable_variables": ()},
        )
    assert report.chunks == count
    found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


WORK: dict[str, tuple[Callable[[Path, int], dict[str, float]], int]] = {
    "ingest_icechunk": (partial(ingest_icechunk, scheduler="threads"), INGESTED),
    "ingest_xarray": (partial(ingest_icechunk, scheduler="synchronous"), INGESTED),
    "ingest_single": (partial(ingest_ours, on_spark=False, name="ingest-single"), INGESTED),
    "ingest_core": (ingest_core, INGESTED),
    "ingest_spark": (partial(ingest_ours, on_spark=True, name="ingest-spark"), INGESTED),
    "virtualize_virtualizarr": (virtualize_virtualizarr, SMALL_FILES),
    "virtualize_spark": (virtualize_spark, SMALL_FILES),
    "nothing_to_do": (nothing_to_do, SMALL_FILES),
    "driver_memory": (driver_memory, FEW_REFS),
}


def main(work: str, folder: str, count: str | None = None) -> None:
    """Do one work, and print what it took."""
    function, usual = WORK[work]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HDF5's filters are in no specification of Zarr
        found = function(Path(folder), usual if count is None else int(count))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
