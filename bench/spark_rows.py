"""Rows per second from a repository into Spark, and the upper limit that Spark sets.

``python spark_rows.py`` prints JSON: rates of ``icefloe.spark.read`` and of
``spark.read.format("icefloe")``. The ceiling of each is the rate of a function or data source with
the same columns that yields one prepared batch repeatedly and reads nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xarray as xr
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

import icefloe.spark
from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage
from icefloe.xarray import to_icechunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SHAPE = (200, 180, 360)
BATCH_ROWS = 100_000
ROUNDS = 3


def make_weather(path: str, shape: tuple[int, ...] = SHAPE) -> Repository:
    """Create a repository with temperature and packed rain, in chunks of a few megabytes."""
    repository = Repository.create(local_filesystem_storage(path))
    random = np.random.default_rng(0)
    time_, lat, lon = shape
    dataset = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), random.normal(280, 10, shape).astype("f4").round(2)),
            "rain": (("time", "lat", "lon"), random.random(shape).round(4)),
        },
        coords={
            "time": np.datetime64("2000-01-01", "ns") + np.arange(time_) * np.timedelta64(1, "D"),
            "lat": np.linspace(89.5, -89.5, lat),
            "lon": np.arange(lon) * 360 / lon,
        },
    )
    chunks = (20, lat, lon)
    packed = {"dtype": "i2", "scale_factor": 1e-4, "_FillValue": -1}
    session = repository.writable_session("main")
    to_icechunk(
        dataset, session, encoding={"t2m": {"chunks": chunks}, "rain": {"chunks": chunks, **packed}}
    )
    session.commit("weather")
    return repository


class PreparedSource(DataSource):
    """A data source with the columns of the temperature table, and prepared batches."""

    COLUMNS = pa.schema(
        [
            ("time", pa.timestamp("us")),
            ("lat", pa.float64()),
            ("lon", pa.float64()),
            ("t2m", pa.float32()),
        ]
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "icefloe_bench_prepared"

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(self.COLUMNS, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the reader."""
        return PreparedReader(int(self.options["batches"]), self.COLUMNS)


class PreparedReader(DataSourceReader):
    """Yields one prepared batch repeatedly."""

    _PARTITIONS = 20

    def __init__(self, batches: int, schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the partitions."""
        return [InputPartition(number) for number in range(self._PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the batches of a partition."""
        values = np.arange(BATCH_ROWS)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(values).cast(field.type) for field in self._schema], schema=self._schema
        )
        for _ in range(partition.value, self._batches, self._PARTITIONS):
            yield batch


def measure_read(frame: DataFrame) -> float:
    """Return the best time of reading all rows and discarding them."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        frame.write.format("noop").mode("append").save()
        best = min(best, time.perf_counter() - start)
    return best


def read_prepared(spark: SparkSession, batches: int, schema: pa.Schema) -> DataFrame:
    """Yield the batches of the prepared source from a function."""
    reader = PreparedReader(batches, schema)

    def yield_batches(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from reader.read(InputPartition(number))

    count = len(reader.partitions())
    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return spark.range(0, count, 1, count).mapInArrow(yield_batches, columns)


def measure(spark: SparkSession, repository: Repository, path: str) -> dict[str, Any]:
    """Compare ways to read in one session."""
    num_rows = int(np.prod(SHAPE))
    icefloe.spark.register(spark)
    spark.dataSource.register(PreparedSource)
    batches = -(-num_rows // BATCH_ROWS)
    frames = {
        "read_ceiling": read_prepared(spark, batches, PreparedSource.COLUMNS),
        "read": icefloe.spark.read(spark, repository, variables=["t2m"]),
        "format_ceiling": spark.read.format(PreparedSource.name())
        .option("batches", str(batches))
        .load(),
        "format": spark.read.format("icefloe").option("variables", "t2m").load(path),
        "read_with_packed_rain": icefloe.spark.read(spark, repository),
    }
    rates = {name: round(num_rows / measure_read(frame) / 1e6, 2) for name, frame in frames.items()}
    return {
        "rows": num_rows,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "million_rows_per_second": rates,
    }


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        repository = make_weather(f"{folder}/weather")
        spark = icefloe.spark.spark_session("local[2]")
        try:
            print(json.dumps(measure(spark, repository, f"{folder}/weather")))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
