"""Sources of all formats and spellings give the dataset that xarray opens."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
import xarray
from fsspec.implementations.reference import LazyReferenceMapper

import icefloe
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import Report
from support.kerchunk_references import make_references
from support.netcdf_files import assert_icechunk_agrees, dataset

if TYPE_CHECKING:
    from pathlib import Path

    from support.servers import S3Server

pytestmark = pytest.mark.filterwarnings("ignore")
JOBS: dict[str, Any] = {"virtualize": virtualize, "ingest": ingest}


def days(first: int) -> xarray.Dataset:
    """Make two days of packed temperature with missing values, and coordinates."""
    rng = np.random.default_rng(first)
    kelvin = rng.integers(25_000, 30_000, (2, 3, 4)) / 100
    kelvin[:, 0, ::2] = np.nan
    made = xarray.Dataset(
        {"t2m": (("time", "lat", "lon"), kelvin, {"units": "K"})},
        {
            "time": ("time", np.arange(first, first + 2), {"units": "days since 2024-01-01"}),
            "lat": np.linspace(90, -90, 3),
            "lon": np.arange(4) * 90.0,
        },
        {"title": "days"},
    )
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    made["t2m"].encoding = packing
    return made


def zarr_store(made: xarray.Dataset, path: Path, version: Any) -> Path:
    made["t2m"].encoding["chunks"] = (1, 3, 2)
    made.to_zarr(path.with_suffix(".zarr"), zarr_format=version, consolidated=version == 2)
    return path.with_suffix(".zarr")


def netcdf3(made: xarray.Dataset, path: Path) -> Path:
    made.to_netcdf(path.with_suffix(".nc"), format="NETCDF3_64BIT", engine="netcdf4")
    return path.with_suffix(".nc")


def references(made: xarray.Dataset, path: Path) -> dict[str, Any]:
    made["t2m"].encoding |= {"chunksizes": (1, 3, 2), "zlib": True}
    data = path.with_suffix(".nc")
    made.to_netcdf(data, engine="h5netcdf")
    return make_references(data)


def kerchunk_json(made: xarray.Dataset, path: Path) -> Path:
    path.with_suffix(".json").write_text(json.dumps(references(made, path)))
    return path.with_suffix(".json")


def kerchunk_parquet(made: xarray.Dataset, path: Path) -> Path:
    refs = references(made, path)["refs"]
    folder = str(path.with_suffix(".parq"))
    files = fsspec.filesystem("file")
    mapper = LazyReferenceMapper.create(folder, fs=files, record_size=4, engine="pyarrow")
    metadata = [key for key in refs if "/.z" in f"/{key}"]
    for key in metadata:
        mapper[key] = refs[key].encode()
    mapper.flush()
    mapper = LazyReferenceMapper(folder, files, engine="pyarrow")
    for key in refs.keys() - {*metadata}:
        mapper[key] = refs[key].encode() if isinstance(refs[key], str) else refs[key]
    mapper.flush()
    return path.with_suffix(".parq")


KINDS: dict[str, Any] = {
    "zarr2": lambda made, path: zarr_store(made, path, 2),
    "zarr3": lambda made, path: zarr_store(made, path, 3),
    "netcdf3": netcdf3,
    "json": kerchunk_json,
    "parquet": kerchunk_parquet,
}


def write_sources(folder: Path, kind: str, count: int = 3) -> list[Path]:
    return [KINDS[kind](days(2 * number), folder / f"part-{number}") for number in range(count)]


def open_file(path: Path) -> Any:
    """Open one source with xarray."""
    match path.suffix:
        case ".zarr":
            return xarray.open_zarr(path, chunks=None).load()
        case ".nc":
            return xarray.open_dataset(path).load()
        case _:  # references: what they refer to
            return xarray.open_dataset(path.with_suffix(".nc")).load()


def open_with_xarray(paths: list[Path]) -> Any:
    return xarray.concat([open_file(path) for path in paths], "time", data_vars="minimal")


NAMED: dict[str, Any] = {
    "zarr2": lambda paths, _: f"{paths[0].parent}/part-*.zarr",
    "zarr3": lambda paths, _: paths,
    "netcdf3": lambda paths, _: pd.DataFrame({"id": range(3), "path": map(str, paths)}),
    "json": lambda paths, _: pa.table({"url": [path.as_uri() for path in paths]}),
    "parquet": lambda paths, spark: spark.createDataFrame(
        [(str(path),) for path in paths], "source string"
    ),
}
"""A pattern, a list and tables of pandas, Arrow and Spark: each way once."""


@pytest.mark.parametrize("job", sorted(JOBS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_makes_of_sources_what_xarray_opens(
    job: str, kind: str, request: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Created from two sources; then all three are appended."""
    paths = write_sources(folder, kind)
    spark = request.getfixturevalue("spark") if kind == "parquet" else None
    JOBS[job](spark, repository, paths[:2])
    report = append(spark, repository, NAMED[kind](paths, spark))
    assert isinstance(report, Report)
    assert report.files == 1
    xarray.testing.assert_identical(dataset(repository), open_with_xarray(paths))
    assert_icechunk_agrees(repository, folder)


def test_zarr_stores_in_a_bucket_are_found_by_patterns(s3_server: S3Server, folder: Path) -> None:
    """A pattern matches common prefixes of keys like directories."""
    paths = write_sources(folder, "zarr3", 2)
    place: dict[str, Any] = {
        "bucket": s3_server.bucket,
        "endpoint_url": s3_server.endpoint_url,
        "region": "us-east-1",
        "allow_http": True,
        "force_path_style": True,
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
    }
    prefix = uuid.uuid4().hex
    bucket = icefloe.s3_storage(prefix=f"{prefix}/files", **place)
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(f"{path.relative_to(folder)}", path.read_bytes())
    repository = icefloe.Repository.create(icefloe.s3_storage(prefix=f"{prefix}/repo", **place))
    pattern = f"s3://{s3_server.bucket}/{prefix}/files/part-*.zarr"
    for group, job in JOBS.items():
        job(None, repository, pattern, group=group)
        xarray.testing.assert_identical(dataset(repository, group), open_with_xarray(paths))
