"""Reads a repository through Spark Connect, in a process without a classic session; prints JSON."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout

import xarray as xr
from pyspark.sql import SparkSession

import icefloe.spark
from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage
from icefloe.xarray import to_icechunk
from support.spark_tables import with_secret


def main(path: str, moving: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        repository = with_secret(path, "hunter2")
        by_format = spark.read.format("icefloe").option("variables", "t2m").load(path)
        icefloe.spark.register(spark)
        frame = icefloe.spark.read(
            spark, repository, variables=["t2m"], sel={"time": slice("2020-01-30", "2020-01-31")}
        )
        shown = io.StringIO()
        with redirect_stdout(shown):
            frame.explain(True)
        chunks = icefloe.spark.read(spark, repository, layout="chunks", variables=["t2m"])
        refs = spark.sql("SELECT name, type FROM icefloe_refs(:path)", {"path": path})
        nodes = spark.read.format("icefloe").option("table", "nodes").load(path)
        try:
            spark.read.format("icefloe").option("brnch", "dev").load(path).schema  # noqa: B018
        except Exception as error:  # noqa: BLE001 - its text is what is asked for
            refused = str(error)
        moved = Repository.open(local_filesystem_storage(moving))
        stays = icefloe.spark.read(spark, moved)
        before = stays.count()
        to_icechunk(
            xr.Dataset({"a": ("x", [1])}), session := moved.writable_session("main"), mode="w"
        )
        session.commit("less")
        answer = {
            "stays": [before, stays.count(), icefloe.spark.read(spark, moved).count()],
            "kind": type(spark).__module__,
            "by_format": by_format.count(),
            "rows": frame.count(),
            "sum": frame.selectExpr("sum(CAST(t2m AS DOUBLE))").collect()[0][0],
            "types": frame.dtypes,
            "chunks": chunks.count(),
            "refs": [list(row) for row in refs.collect()],
            "nodes": nodes.count(),
            "refused": refused,
            "shows_secret": "hunter2" in shown.getvalue(),
            "plan": shown.getvalue(),
        }
    finally:
        spark.stop()
    print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
