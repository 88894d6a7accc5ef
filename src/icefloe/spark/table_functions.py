"""Metadata tables in SQL: ``SELECT * FROM icefloe_history('s3://bucket/weather', tag => 'v1')``.

A table function is one task. ``option("table", "chunks")`` reads the manifests of a large
repository in many tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udtf

from icefloe.spark.option_parsing import invalid_input, suggest_name
from icefloe.spark.reading.metadata_tables.registry import METADATA_TABLES
from icefloe.spark.reading.read_options import PLACE_OPTIONS, TABLE_OPTIONS
from icefloe.spark.reading.read_plan import plan_from_options
from icefloe.spark.spark_versions import to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PREFIX = "icefloe_"


def register_table_functions(spark: SparkSession) -> None:
    """Register ``icefloe_snapshots`` and the others with a session."""
    for name, table in METADATA_TABLES.items():
        function: Any = arrow_udtf(_make_handler(name), returnType=to_spark_schema(table.schema))
        spark.udtf.register(PREFIX + name, function)


def read_table(name: str, given: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a metadata table."""
    known = {*PLACE_OPTIONS, *TABLE_OPTIONS[name]}
    for option in given:
        if option not in known:
            raise invalid_input(
                f"{PREFIX}{name} has no argument {option!r}: {suggest_name(option, known)}"
            )
    plan = plan_from_options({"table": name, **given})
    for partition in plan.partitions():
        yield from plan.read(partition)


def _make_handler(name: str) -> type:
    """Return the class that Spark calls; it is pickled by value."""

    class Handler:
        def eval(self, path: Any, **given: Any) -> Iterator[pa.Table]:
            texts = {"path": path, **given}
            options = {
                option: str(value[0].as_py())
                for option, value in texts.items()
                if value[0].as_py() is not None
            }
            for batch in read_table(name, options):
                yield pa.Table.from_batches([batch])

    return Handler
