"""Rows and streams through Spark itself, with tasks that fail and micro-batches that come again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import xarray as xr

from icefloe.errors import InvalidInputError
from icefloe.spark import read, write
from support.stream_cells import (
    DDL,
    NEW,
    batch,
    expected,
    found,
    num_commits,
    tuples,
    write_rows,
)
from support.stream_following import follow

pytest.importorskip("pyspark", reason="SPARK IS NOT TESTED ON THIS MACHINE: no pyspark")

from icefloe.spark.data_source_stream_reader import IcefloeStreamReader
from icefloe.spark.spark_versions import HAS_READ_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from icefloe.repository import Repository


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and fail after them in the first attempt of each task."""
    from pyspark import TaskContext  # noqa: PLC0415 - in the worker

    yield from batches
    if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
        raise OSError("the first attempt fails")


failing_once.__module__ = "__main__"  # travels by value: workers do not have this folder


def test_rows_there_and_back(spark: Any, repository: Repository, folder: Path) -> None:
    """Attempts that fail leave nothing; rows of a chunk meet in one task; twice is once."""
    rows = spark.createDataFrame(tuples(range(1, 6)), DDL).repartition(2)
    made = write(rows.mapInArrow(failing_once, DDL), repository, transaction_id="first five", **NEW)
    assert (made.is_new, made.rows) == (True, 15)
    assert write(rows, repository, transaction_id="first five", **NEW) == type(made)(
        made.snapshot_id, is_new=False
    )
    xr.testing.assert_equal(found(repository), expected(range(1, 6)))
    back = read(spark, repository).select("time", "lat", "v", "n").collect()
    assert sorted(map(tuple, back)) == tuples(range(1, 6))

    more = spark.createDataFrame(tuples([6]) + tuples([6], [10.0]), DDL)
    with pytest.raises(InvalidInputError, match=r"more than once.*time=2020-01-06.*lat=10\.0"):
        write(more, repository, append_dim="time")
    spark.createDataFrame(tuples([6]), DDL).write.format("icefloe").mode("append").option(
        "append_dim", "time"
    ).save(str(folder))
    assert num_commits(repository) == 2
    xr.testing.assert_equal(found(repository), expected(range(1, 7)))


def test_a_region_whose_rows_are_anywhere(spark: Any, repository: Repository, folder: Path) -> None:
    """Without a shuffle: rows of one chunk are in several partitions."""
    write(spark.createDataFrame(tuples(range(1, 6)), DDL), repository, **NEW)
    rows = spark.createDataFrame(
        [(time, lat, -v, n) for time, lat, v, n in tuples([2, 3, 4])], DDL
    ).repartition(3)
    rows.write.format("icefloe").mode("overwrite").option(
        "replaceWhere", json.dumps({"time": {"start": "2020-01-02", "stop": "2020-01-04"}})
    ).save(str(folder))
    wanted = expected(range(1, 6))
    wanted["v"][1:4] *= -1
    xr.testing.assert_equal(found(repository), wanted)


def test_streams(spark: Any, repository: Repository, folder: Path, tmp_path: Path) -> None:
    """A micro-batch that comes again is not committed again; a follower sees each commit once."""
    incoming, checkpoint = tmp_path / "incoming", tmp_path / "checkpoint"
    incoming.mkdir()

    def arrive(*days: int) -> None:
        lines = [
            json.dumps({"time": time.isoformat(), "lat": lat, "v": v, "n": n})
            for time, lat, v, n in tuples(days)
        ]
        (incoming / f"{days[0]}.json").write_text("\n".join(lines))

    def run() -> None:
        stream = spark.readStream.schema(DDL).json(str(incoming)).mapInArrow(failing_once, DDL)
        query = (
            stream.writeStream.format("icefloe")
            .option("path", str(folder))
            .option("dims", "time,lat")
            .option("chunks", json.dumps(NEW["chunks"]))
            .option("append_dim", "time")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    arrive(1, 2)
    run()
    arrive(3, 4)
    run()
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    run()
    assert num_commits(repository) == 2
    xr.testing.assert_equal(found(repository), expected([1, 2, 3, 4]))

    batches: dict[int, list[Any]] = {}
    query = (
        spark.readStream.format("icefloe")
        .options(**({"maxCommitsPerTrigger": 1} if HAS_READ_LIMITS else {}))
        .load(str(folder))
        .writeStream.foreachBatch(
            lambda frame, number: batches.update({number: sorted(map(tuple, frame.collect()))})
        )
        .option("checkpointLocation", str(tmp_path / "following"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    by_name = [[(time, lat, v, n) for time, lat, n, v in rows] for rows in batches.values()]
    assert by_name == (
        [tuples([1, 2]), tuples([3, 4])] if HAS_READ_LIMITS else [tuples([1, 2, 3, 4])]
    )


def test_a_group_is_copied(
    spark: Any, repository: Repository, folder: Path, tmp_path: Path
) -> None:
    """The documented sink takes what the source gives, of days that share a chunk as well."""
    write(spark.createDataFrame(tuples([1]), DDL), repository, group="source", **NEW)
    for number in (2, 3, 4, 5):
        rows = spark.createDataFrame(tuples([number]), DDL)
        write(rows, repository, group="source", append_dim="time")
    limits = {"maxBytesPerTrigger": 150} if HAS_READ_LIMITS else {}
    source = spark.readStream.format("icefloe").options(**limits)
    stream = source.option("group", "source").load(str(folder))
    sink = stream.writeStream.format("icefloe").option("group", "copy").option("append_dim", "time")
    sink = sink.option("dims", "time,lat").option("checkpointLocation", str(tmp_path / "copying"))
    sink.trigger(availableNow=True).start(str(folder)).awaitTermination()
    xr.testing.assert_equal(found(repository, "copy"), found(repository, "source"))
    assert num_commits(repository) == 5 + (3 if HAS_READ_LIMITS else 1)


@pytest.mark.skipif(HAS_READ_LIMITS, reason="this Spark has read limits")
def test_limits_are_refused_where_spark_has_none(repository: Repository) -> None:
    write_rows(repository, batch([1]), **NEW)
    follower = follow(repository, maxCommitsPerTrigger=1)
    with pytest.raises(InvalidInputError, match=r"need Spark 4\.2 or later"):
        IcefloeStreamReader(follower)
