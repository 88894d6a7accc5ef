"""Datasets for tables, and reading them without Spark: the plans know nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xarray as xr

from icefloe.model.config import RepositoryConfig
from icefloe.model.containers import VirtualChunkContainer
from icefloe.repository import Repository
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.reading.chunks import plan_chunks, read_chunks
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.rows import plan_rows, read_rows
from icefloe.spark.reading.snapshot_source import SnapshotSource
from icefloe.storage import (
    containers_credentials,
    local_filesystem_storage,
    s3_credentials,
    s3_store,
)
from icefloe.xarray import to_icechunk

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from icefloe.session import Session


def weather() -> xr.Dataset:
    """Make ten days on a grid, with everything that rows have to understand."""
    random = np.random.default_rng(5)
    shape = (10, 6, 8)
    t2m = random.normal(280, 10, shape).astype("f4")
    t2m[0, 0, :3] = np.nan
    count = random.integers(0, 100, shape).astype("i4")
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K"}),
            "rain": (("time", "lat", "lon"), random.random(shape).round(3)),
            "count": (("time", "lat", "lon"), count),
            "flipped": (("lon", "time", "lat"), random.random((8, 10, 6))),
            "height": (("lat", "lon"), random.random((6, 8)).astype("f4")),
            "day": (("time",), np.arange(10, dtype="u2")),
        },
        coords={
            "time": np.arange("2020-01-28", "2020-02-07", dtype="datetime64[D]").astype("M8[ns]"),
            "lat": np.linspace(50, 40, 6),
            "lon": np.arange(8) * 0.5,
            "region": (("lat", "lon"), random.integers(0, 4, (6, 8))),
            "run": ((), 3),
        },
    )


ENCODING: Mapping[str, Any] = {
    "t2m": {"chunks": (4, 3, 4)},
    "rain": {"chunks": (2, 3, 2), "dtype": "i2", "scale_factor": 0.001, "_FillValue": -1},
    "count": {"chunks": (4, 6, 8), "_FillValue": 7},
    "flipped": {"chunks": (4, 4, 3)},
}


def commit(
    repository: Repository,
    dataset: xr.Dataset,
    encoding: Mapping[str, Any] | None = None,
    *,
    group: str | None = None,
    branch: str = "main",
    message: str = "written",
) -> str:
    session = repository.writable_session(branch)
    to_icechunk(dataset, session, group=group, encoding=encoding, mode="w")
    return session.commit(message)


def with_secret(path: str | os.PathLike[str], secret: str) -> Repository:
    """Open a repository that has a credential with it."""
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("s3://bucket/", s3_store(region="us-east-1"))
    )
    credentials = s3_credentials(access_key_id=f"AK{secret}", secret_access_key=secret)
    return Repository.open(
        local_filesystem_storage(path),
        config,
        containers_credentials({"s3://bucket/": credentials}),
    )


def rows(session: Session, **given: Any) -> pa.Table:
    """Read a table of rows, partition by partition."""
    options = ReadOptions.parse(encode_options(**given))
    plan = plan_rows(session, options)
    batches = [batch for part in plan.partitions() for batch in read_rows(session, plan, part)]
    return pa.Table.from_batches(batches, schema=plan.schema)


def chunk_rows(session: Session, **given: Any) -> list[dict[str, Any]]:
    options = ReadOptions.parse(encode_options(layout="chunks", **given))
    plan = plan_chunks(session, options)
    batches = [batch for part in plan.partitions() for batch in read_chunks(session, plan, part)]
    return [row for batch in batches for row in batch.to_pylist()]


def metadata(repository: Repository, table: str, **given: Any) -> list[dict[str, Any]]:
    options = ReadOptions.parse(encode_options(table=table, **given))
    source = SnapshotSource.resolve(repository, options)
    plan = plan_read(source, options)
    batches = [batch for partition in plan.partitions() for batch in plan.read(partition)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, schema=plan.schema).to_pylist()
    return rows


def assert_same_rows(found: Any, expected: xr.Dataset) -> None:
    """Check that rows are those of ``to_dataframe``, in whatever order they came."""
    dims = max((variable.dims for variable in expected.data_vars.values()), key=len)
    wanted = expected.to_dataframe(dim_order=list(dims)).reset_index()
    frame = found.to_pandas() if isinstance(found, pa.Table) else found
    assert sorted(map(str, frame)) == sorted(map(str, wanted))
    frame = frame.sort_values(list(dims), ignore_index=True)
    wanted = wanted.sort_values(list(dims), ignore_index=True)
    for name in wanted:
        column = frame[name].to_numpy()
        if wanted[name].dtype.kind == "f":
            column = column.astype(float)
            np.testing.assert_array_equal(column, wanted[name].to_numpy().astype(float))
        else:
            np.testing.assert_array_equal(column, wanted[name].to_numpy())
