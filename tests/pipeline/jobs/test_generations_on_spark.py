"""Jobs, rows, streams and tables on Spark, over the generations that Icechunk does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.repository import Repository
from icefloe.spark import read, write
from icefloe.storage import local_filesystem_storage
from support.array_repositories import array, write_weather
from support.generations import OLDER
from support.netcdf_files import assert_same, create, dataset, files_dataset, write_files
from support.stream_cells import DDL, NEW, expected, found, num_commits, tuples

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe

pytestmark = pytest.mark.parametrize("generation", OLDER)


@pytest.fixture
def repository(tmp_path: Path, folder: Path, generation: str) -> icefloe.Repository:
    return create(tmp_path / "repo", folder, generation=generation)


def test_files(spark: Any, folder: Path, repository: icefloe.Repository) -> None:
    """Files are virtualized, appended to and copied; the values are those that xarray reads."""
    paths = write_files(folder, 4)
    virtualize(spark, repository, paths[:2], group="virtual")
    virtualize(spark, repository, paths, group="virtual", append=True, refs_per_manifest=8)
    ingest(spark, repository, paths[:2], group="native", chunks={"time": 3})
    report: Any = ingest(spark, repository, paths, group="native", append=True)
    assert (report.files, report.is_new) == (2, True)
    for group in ("virtual", "native"):
        assert_same(dataset(repository, group), files_dataset(paths))


def test_rechunking(spark: Any, repository: icefloe.Repository) -> None:
    """An array in other chunks has its values."""
    values = write_weather(repository)
    rechunk(spark, repository, "air", {"time": 20, "lat": 1, "lon": 1}, task_bytes=1_000)
    assert array(repository, "air").chunks == (20, 1, 1)
    np.testing.assert_array_equal(array(repository, "air")[:], values)


def test_rows(spark: Any, tmp_path: Path, generation: str) -> None:
    """Rows are written once for each transaction id, appended with a DataFrame, and read back."""
    storage = local_filesystem_storage(tmp_path / "rows")
    repository = Repository.create(storage, generation=generation)
    rows = spark.createDataFrame(tuples(range(1, 6)), DDL).repartition(2)
    made = write(rows, repository, transaction_id="first five", **NEW)
    again = write(rows, repository, transaction_id="first five", **NEW)
    assert (made.is_new, again.is_new, again.snapshot_id) == (True, False, made.snapshot_id)
    spark.createDataFrame(tuples([6]), DDL).write.format("icefloe").mode("append").option(
        "append_dim", "time"
    ).save(str(tmp_path / "rows"))
    assert num_commits(repository) == 2
    xr.testing.assert_equal(found(repository), expected(range(1, 7)))
    back = read(spark, repository).select("time", "lat", "v", "n").collect()
    assert sorted(map(tuple, back)) == tuples(range(1, 7))


def test_tables(spark: Any, repository: icefloe.Repository) -> None:
    """Metadata tables describe nodes, chunks, manifests, snapshots and changes."""
    write_weather(repository)
    tables = {
        name: read(spark, repository, table=name).collect()
        for name in ("nodes", "chunks", "manifests", "snapshots")
    }
    first = list(repository.ancestry(branch="main"))[-1].id
    changes = read(spark, repository, table="changes", from_=first).collect()
    assert {row["path"] for row in tables["nodes"]} == {
        "/", "/air", "/lat", "/lon", "/mask", "/time",
    }  # fmt: skip
    num_refs = sum(info.num_chunk_refs for info in _manifests(repository))
    assert len(tables["chunks"]) == num_refs
    assert sum(row["num_chunk_refs"] for row in tables["manifests"]) == num_refs
    assert {row["snapshot_id"] for row in tables["snapshots"]} == {
        info.id for info in repository.ancestry(branch="main")
    }
    created = {row["path"] for row in changes if row["change_type"] == "array_created"}
    assert created == {"/air", "/lat", "/lon", "/mask", "/time"}


def _manifests(repository: icefloe.Repository) -> list[Any]:
    return repository.list_manifest_files(repository.lookup_branch("main"))


def test_streams(spark: Any, tmp_path: Path, generation: str) -> None:
    """A stream of rows is committed, and a follower of the branch sees its rows."""
    storage = local_filesystem_storage(tmp_path / "rows")
    repository = Repository.create(storage, generation=generation)
    write(spark.createDataFrame(tuples([1, 2]), DDL), repository, **NEW)
    write(spark.createDataFrame(tuples([3, 4]), DDL), repository, append_dim="time")
    rows: list[Any] = []
    query = (
        spark.readStream.format("icefloe")
        .load(str(tmp_path / "rows"))
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "following"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted((row["time"], row["lat"], row["v"], row["n"]) for row in rows) == tuples(
        range(1, 5)
    )
