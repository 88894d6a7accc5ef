from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import icefloe.spark
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage, local_filesystem_storage
from support.spark_tables import assert_same_rows, commit, metadata, with_secret

if TYPE_CHECKING:
    from pathlib import Path


def opened(repository: Repository) -> xr.Dataset:
    store = repository.readonly_session("main").store
    dataset: xr.Dataset = xr.open_zarr(store, consolidated=False, chunks=None)
    return dataset


def plans(frame: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return everything that Spark shows of how it makes a table."""
    capsys.readouterr()
    for mode in ("extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    return capsys.readouterr().out


def test_a_group_is_a_table(spark: Any, written: Path, repository: Repository) -> None:
    frame = spark.read.format("icefloe").load(str(written))
    types = dict(frame.dtypes)
    assert types["time"] == "timestamp_ntz"
    assert types["t2m"] == "float"
    assert types["count"] == "int"
    assert types["day"] == "int"
    assert_same_rows(frame.toPandas(), opened(repository))


def test_a_selection_in_sql(spark: Any, written: Path, repository: Repository) -> None:
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY VIEW january USING icefloe OPTIONS (
            path '{written}', variables 't2m', sel '{{"time": "2020-01"}}'
        )
        """
    )
    days = spark.sql("SELECT time, avg(t2m) AS mean FROM january GROUP BY time ORDER BY time")
    expected = opened(repository)["t2m"].sel(time="2020-01").astype("f8").mean(("lat", "lon"))
    found = days.toPandas()
    np.testing.assert_array_equal(found["time"].to_numpy(), expected["time"].values)
    np.testing.assert_allclose(found["mean"].to_numpy(), expected.values)


def test_a_time_in_the_table_is_the_same_in_every_time_zone(spark: Any, written: Path) -> None:
    frame = spark.read.format("icefloe").option("variables", "day").load(str(written))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        first = frame.selectExpr("CAST(min(time) AS STRING)").first()[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert first == "2020-01-28 00:00:00"


def test_chunks_without_anything_of_a_selection_need_not_be_there(
    spark: Any, tmp_path: Path
) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path / "r"))
    values = np.random.default_rng(0).random((400, 100))
    commit(repository, xr.Dataset({"a": (("x", "y"), values)}), {"a": {"chunks": (100, 100)}})
    needed = {
        row["chunk_id"]
        for row in metadata(repository, "chunks")
        if row["path"] == "/a" and row["chunk"][0] == 2
    }
    assert len(needed) == 1
    for file in (tmp_path / "r" / "chunks").iterdir():
        if file.name not in needed:
            file.unlink()
    frame = icefloe.spark.read(spark, repository, isel={"x": slice(210, 260)})
    found = frame.orderBy("x", "y").toArrow()["a"].to_numpy()
    np.testing.assert_array_equal(found, values[210:260].reshape(-1))


def test_a_frame_stays_at_the_snapshot_that_it_found(spark: Any, tmp_path: Path) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path / "r"))
    first = commit(repository, xr.Dataset({"a": ("x", [1, 2])}))
    frame = icefloe.spark.read(spark, repository)
    by_path = spark.read.format("icefloe").load(str(tmp_path / "r"))
    assert frame.count() == 2
    commit(repository, xr.Dataset({"a": ("x", [1, 2, 3])}))
    assert frame.count() == by_path.count() == 2
    assert icefloe.spark.read(spark, repository).count() == 3
    assert icefloe.spark.read(spark, repository, snapshot=first).count() == 2
    assert icefloe.spark.read(spark, repository.readonly_session(snapshot_id=first)).count() == 2


def test_two_filters_on_one_frame_do_not_touch_each_other(
    spark: Any, repository: Repository
) -> None:
    """What goes wrong in Spark where a Python source takes filters."""
    frame = icefloe.spark.read(spark, repository, variables="day")
    assert frame.filter("day = 5").count() == 1
    assert frame.count() == 10
    assert frame.filter("day < 3").union(frame.filter("day >= 8")).count() == 5


def test_chunks_as_rows(spark: Any, repository: Repository, dataset: xr.Dataset) -> None:
    frame = icefloe.spark.read(
        spark, repository, variables=["t2m"], layout="chunks", isel={"time": 0}
    )
    rows = frame.collect()
    assert len(rows) == 4
    for row in rows:
        values = np.frombuffer(row.data, row.dtype).reshape(row.shape)
        inside = tuple(
            slice(first, first + size) for first, size in zip(row.offset, row.shape, strict=True)
        )
        np.testing.assert_array_equal(values, dataset["t2m"].values[inside])


def test_credentials_travel_out_of_sight(
    spark: Any, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = with_secret(written, "hunter2")
    frame = icefloe.spark.read(spark, repository, variables="day", target_bytes=1)
    assert frame.count() == 10
    frame.createOrReplaceTempView("secretive")
    shown = plans(frame, capsys) + plans(spark.sql("SELECT * FROM secretive"), capsys)
    shown += str(spark.sparkContext.getConf().getAll()) + repr(frame)
    shown += frame._jdf.queryExecution().toString()
    assert "icefloe" in shown
    assert "hunter2" not in shown


def test_metadata_tables_by_option_and_by_function(
    spark: Any, written: Path, repository: Repository
) -> None:
    for table in ("snapshots", "refs", "nodes", "chunks"):
        expected = metadata(repository, table)
        frame = spark.read.format("icefloe").option("table", table).load(str(written))
        function = spark.sql(f"SELECT * FROM icefloe_{table}(:path)", {"path": str(written)})  # noqa: S608 - ours
        assert frame.schema == function.schema
        key = frame.columns[0]
        for found in (frame, function):
            rows = [row.asDict() for row in found.collect()]
            assert len(rows) == len(expected)
            assert sorted(str(row[key]) for row in rows) == sorted(
                str(row[key].replace(tzinfo=None) if key == "committed_at" else row[key])
                for row in expected
            )


def test_table_functions_take_arguments_by_name(
    spark: Any, written: Path, repository: Repository
) -> None:
    tip = repository.lookup_branch("main")
    first = list(repository.ancestry(branch="main"))[-1].id
    names = {"path": str(written), "tip": tip, "first": first}
    found = spark.sql("SELECT snapshot_id FROM icefloe_history(:path, snapshot => :tip)", names)
    assert [row[0] for row in found.collect()] == [tip, first]
    changes = spark.sql(
        "SELECT change_type, count(*) FROM icefloe_changes(:path, from => :first) "
        "GROUP BY change_type",
        names,
    )
    assert dict(map(tuple, changes.collect()))["array_created"] == 11
    with pytest.raises(Exception, match="icefloe_refs has no argument 'brnch'"):
        spark.sql("SELECT * FROM icefloe_refs(:path, brnch => 'dev')", names).collect()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"brnch": "dev"}, "no option 'brnch': did you mean 'branch'"),
        ({"group": "weathr"}, "there is no group '/weathr'"),
        ({"sel": '{"lat": 95}'}, "nothing along 'lat' with 95: its labels range from 40.0 to"),
        ({"tag": "v1"}, "v1"),
    ],
    ids=str,
)
def test_what_is_wrong_shows_when_the_frame_is_made(
    spark: Any, written: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.read.format("icefloe").options(**options).load(str(written))


def test_a_repository_that_is_not_there(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no repository at"):
        icefloe.spark.read(spark, tmp_path / "nothing")
    with pytest.raises(Exception, match="there is no repository at"):
        spark.read.format("icefloe").load(str(tmp_path / "nothing"))


def test_an_open_repository_gives_errors_of_this_library(
    spark: Any, repository: Repository
) -> None:
    with pytest.raises(InvalidInputError, match="nothing along 'lat'"):
        icefloe.spark.read(spark, repository, sel={"lat": 95})
    with pytest.raises(InvalidInputError, match="no option 'brnch'"):
        icefloe.spark.read(spark, repository, brnch="dev")
    with pytest.raises(NotFoundError, match="dev"):
        icefloe.spark.read(spark, repository, branch="dev")
    with pytest.raises(InvalidInputError, match="omit 'branch'"):
        icefloe.spark.read(spark, repository.readonly_session("main"), branch="dev")


def test_what_other_processes_cannot_see_is_refused(spark: Any, empty: Repository) -> None:
    with pytest.raises(InvalidInputError, match="cannot read a repository in memory"):
        icefloe.spark.read(spark, Repository.create(in_memory_storage()))
    session = empty.writable_session("main")
    from icefloe.xarray import to_icechunk  # noqa: PLC0415

    to_icechunk(xr.Dataset({"a": ("x", [1])}), session)
    with pytest.raises(InvalidInputError, match="commit them, then read"):
        icefloe.spark.read(spark, session)


def test_an_executor_names_the_chunk_that_is_gone(spark: Any, tmp_path: Path) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path / "r"))
    values = np.random.default_rng(0).random((200, 100))
    commit(repository, xr.Dataset({"a": (("x", "y"), values)}), {"a": {"chunks": (100, 100)}})
    frame = icefloe.spark.read(spark, repository)
    shutil.rmtree(tmp_path / "r" / "chunks")
    with pytest.raises(Exception, match="chunks/"):
        frame.count()
