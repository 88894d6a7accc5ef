"""Metadata tables in SQL: ``SELECT * FROM icefloe_history('s3://bucket/weather', tag => 'v1')``.

Each is one task that yields Arrow batches. ``option("table", "chunks")`` shares the manifests of a
large repository among many tasks, which a table function cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udtf
from pyspark.sql.pandas.types import from_arrow_schema

from icefloe.spark.reading.metadata_tables import METADATA_TABLES, find_table
from icefloe.spark.reading.read_options import (
    PLACE_OPTIONS,
    ReadOptions,
    invalid_input,
    suggest_name,
    table_options,
)
from icefloe.spark.reading.snapshot_source import SnapshotSource, open_from_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PREFIX = "icefloe_"


def register_table_functions(spark: SparkSession) -> None:
    """Make ``icefloe_snapshots`` and the others known to a session."""
    for name, table in METADATA_TABLES.items():
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        function: Any = arrow_udtf(_handler(name), returnType=schema)
        spark.udtf.register(PREFIX + name, function)


def read_table(name: str, given: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Read a whole metadata table."""
    known = {*PLACE_OPTIONS, *table_options(name)}
    for option in given:
        if option not in known:
            raise invalid_input(
                f"{PREFIX}{name} has no argument {option!r}: {suggest_name(option, known)}"
            )
    options = ReadOptions.parse({"table": name, **given})
    source = SnapshotSource.resolve(open_from_options(options.place), options)
    table = find_table(source, name)
    for task in table.tasks(source):
        yield from table.read(source, options, task)


def _handler(name: str) -> type:
    """Make the class that Spark calls; it is pickled whole, so it imports nothing of its own."""

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
