"""The Spark data source ``icefloe``: connects Spark's interfaces to plans, writers and streams.

Filters are not pushed down: Spark 4.1 to 4.3 returns wrong rows from Python data sources that
accept filters. Options of the read select rows instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from icefloe.spark.data_source_stream_reader import IcefloeStreamReader
from icefloe.spark.data_source_writers import IcefloeStreamWriter, IcefloeWriter
from icefloe.spark.reading.read_plan import PlannedRead, plan_from_options
from icefloe.spark.reading.repository_options import open_from_options
from icefloe.spark.spark_versions import to_spark_schema
from icefloe.spark.streaming.branch_follower import BranchFollower
from icefloe.spark.streaming.stream_options import StreamOptions, has_stream_options
from icefloe.spark.table_functions import register_table_functions
from icefloe.spark.writing.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_STREAM_EXAMPLE: Final = 'spark.readStream.format("icefloe").load({path})'


def register(spark: SparkSession) -> None:
    """Register the format ``icefloe`` and the table functions ``icefloe_…`` with a session.

    If this package is installed where Spark runs, Spark finds the format without this call, but the
    functions must be registered.
    """
    spark.dataSource.register(IcefloeDataSource)
    register_table_functions(spark)


class IcefloeDataSource(DataSource):
    """The format of ``spark.read.format("icefloe")``, also for writes and streams.

    The snapshot is resolved when the DataFrame is created, and every action on it reads the same
    rows. Spark Connect resolves the snapshot again for each action, unless the option ``snapshot``
    is set.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: PlannedRead | None = None
        self._follower: BranchFollower | None = None

    @classmethod
    def name(cls) -> str:
        return "icefloe"

    def schema(self) -> StructType:
        # Spark does not say whether it asks for a batch or a stream. Without options of streams,
        # both have the same schema.
        source = self._get_follower() if has_stream_options(self.options) else self._get_plan()
        return to_spark_schema(source.schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the plan has it
        return IcefloeReader(self._get_plan())

    def writer(self, schema: StructType, overwrite: bool) -> IcefloeWriter:  # noqa: FBT001 - Spark's
        return IcefloeWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> IcefloeStreamReader:  # noqa: ARG002, N802
        return IcefloeStreamReader(self._get_follower())

    def streamWriter(self, schema: StructType, overwrite: bool) -> IcefloeStreamWriter:  # noqa: FBT001, N802
        return IcefloeStreamWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def _get_follower(self) -> BranchFollower:
        if self._follower is None:
            options = StreamOptions.parse(self.options)
            repository = open_from_options(options.read.repository, example=_STREAM_EXAMPLE)
            self._follower = BranchFollower.begin(repository, options)
        return self._follower

    def _get_plan(self) -> PlannedRead:
        # Spark calls `schema` when the DataFrame is created, then pickles this object, so that all
        # later actions use this plan and its snapshot.
        if self._plan is None:
            self._plan = plan_from_options(self.options)
        return self._plan


class IcefloeReader(DataSourceReader):
    """Runs a planned read in Spark tasks."""

    def __init__(self, plan: PlannedRead) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(partition) for partition in self._plan.partitions()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # If there are no partitions, Spark passes one whose value is None.
        return iter(()) if partition.value is None else self._plan.read(partition.value)
