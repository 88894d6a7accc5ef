"""Spark sessions of programs of their own: classic ones and Connect do not mix in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.standalone_cluster import QUICK_JAVA

if TYPE_CHECKING:
    from collections.abc import Mapping


def session(kind: str, url: str, settings: Mapping[str, str] | None = None) -> Any:
    """Start a session: ``remote`` with Spark Connect, ``master`` on a cluster."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only in a process of its own

    if kind == "remote":
        builder = SparkSession.builder.remote(url)
        # Of Connect's clients none knows how many cores there are.
        common = {"spark.ui.enabled": "false", "spark.default.parallelism": "2"}
    else:
        builder = SparkSession.builder.master(url)
        common = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.sql.shuffle.partitions": "2",
        }
    for name, value in {**common, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
