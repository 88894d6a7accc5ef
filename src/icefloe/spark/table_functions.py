"""Metadata tables in SQL: ``SELECT * FROM icefloe_history('s3://bucket/weather', tag => 'v1')``.

A table function runs in one task. For large repositories, ``spark.read.option("table", "chunks")``
reads manifests in many tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udtf

from icefloe.spark.option_parsing import input_error, suggest_name
from icefloe.spark.reading.metadata_tables.registry import METADATA_TABLES
from icefloe.spark.reading.read_options import REPOSITORY_OPTIONS, TABLE_OPTIONS
from icefloe.spark.reading.read_plan import plan_from_options
from icefloe.spark.spark_versions import to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PREFIX = "icefloe_"


def register_table_functions(spark: SparkSession) -> None:
    """Register a function ``icefloe_<table>`` per metadata table with a session."""
    for name, table in METADATA_TABLES.items():
        function: Any = arrow_udtf(_make_handler(name), returnType=to_spark_schema(table.schema))
        spark.udtf.register(PREFIX + name, function)


def read_table(name: str, options: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a metadata table."""
    allowed = {*REPOSITORY_OPTIONS, *TABLE_OPTIONS[name]}
    for option in options:
        if option not in allowed:
            raise input_error(
                f"{PREFIX}{name} has no argument {option!r}: {suggest_name(option, allowed)}"
            )
    plan = plan_from_options({"table": name, **options})
    for partition in plan.partitions():
        yield from plan.read(partition)


def _make_handler(name: str) -> type:
    """Return the handler class of a table function, which Spark pickles by value."""

    class Handler:
        def eval(self, path: Any, **arguments: Any) -> Iterator[pa.Table]:
            columns = {"path": path, **arguments}
            options = {
                option: str(column[0].as_py())
                for option, column in columns.items()
                if column[0].as_py() is not None
            }
            for batch in read_table(name, options):
                yield pa.Table.from_batches([batch])

    return Handler
