"""The data source ``icefloe``: wiring between Spark and the plans that read for it.

Filters are not pushed down: Spark 4.1 to 4.3 returns wrong rows from Python sources that take them.
Selections are options of the read, and each read is planned for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from icefloe.spark.data_source_writers import IcefloeStreamWriter, IcefloeWriter
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.snapshot_source import SnapshotSource, open_from_options
from icefloe.spark.streaming.branch_follower import BranchFollower
from icefloe.spark.writing.write_options import StreamOptions, WriteOptions, has_stream_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from icefloe.spark.data_source_stream_reader import IcefloeStreamReader
    from icefloe.spark.reading.read_plan import ReadPlan

_FOLLOW: Final = 'spark.readStream.format("icefloe").load({path})'


class IcefloeDataSource(DataSource):
    """``spark.read.format("icefloe")``, and the same of ``write`` and of streams.

    The snapshot is found when the DataFrame is made, and stays: whatever others commit, every
    action on it sees the same rows. Spark Connect makes it anew for each action, from a cache or
    not: `icefloe.spark.read` names the snapshot, or the option ``snapshot`` does.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: ReadPlan | None = None
        self._follower: BranchFollower | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "icefloe"

    def schema(self) -> StructType:
        """Tell the columns, from the snapshot's metadata."""
        # Spark does not say whether it is going to read a snapshot or to follow a branch.
        found = self._get_follower() if has_stream_options(self.options) else self._get_plan()
        return from_arrow_schema(found.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - ours is known
        """Plan the read."""
        return IcefloeReader(self._get_plan())

    def writer(self, schema: StructType, overwrite: bool) -> IcefloeWriter:  # noqa: FBT001 - Spark's
        """Plan a write, and refuse columns that do not fit."""
        return IcefloeWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> IcefloeStreamReader:  # noqa: ARG002, N802
        """Follow a branch."""
        # Spark 4.1 has no read limits, and no such module; it reads and writes all the same.
        from icefloe.spark.data_source_stream_reader import IcefloeStreamReader  # noqa: PLC0415

        return IcefloeStreamReader(self._get_follower())

    def streamWriter(self, schema: StructType, overwrite: bool) -> IcefloeStreamWriter:  # noqa: FBT001, N802
        """Write micro-batches."""
        return IcefloeStreamWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def _get_follower(self) -> BranchFollower:
        if self._follower is None:
            options = StreamOptions.parse(self.options)
            self._follower = BranchFollower.begin(
                open_from_options(options.read.place, example=_FOLLOW), options
            )
        return self._follower

    def _get_plan(self) -> ReadPlan:
        # Spark asks for the schema when the DataFrame is made, and pickles this object then: the
        # plan, with the snapshot that it found, is what all later actions read.
        if self._plan is None:
            options = ReadOptions.parse(self.options)
            source = SnapshotSource.resolve(open_from_options(options.place), options)
            self._plan = plan_read(source, options)
        return self._plan


class IcefloeReader(DataSourceReader):
    """Hands parts of a plan to Spark's tasks."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the plan into tasks."""
        return [InputPartition(task) for task in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one task's part as Arrow batches."""
        # Spark makes up a partition without anything in it where there is none.
        return iter(()) if partition.value is None else self._plan.read(partition.value)
