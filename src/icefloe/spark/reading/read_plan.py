"""A planned read: its columns, its partitions and the rows of each partition.

Does not import PySpark. The pickle of a planned read contains the credentials of its repository: it
is part of functions and readers that Spark sends to tasks, never of options or rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.spark.reading.chunks import plan_chunks
from icefloe.spark.reading.metadata_tables.registry import plan_metadata_table
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.repository_options import open_from_options
from icefloe.spark.reading.rows import plan_rows
from icefloe.spark.reading.snapshot_source import SnapshotSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from icefloe.session import Session


class ReadPlan(Protocol):
    """Plan of a read. Sent to every task, so it has no credentials and no list of partitions."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""

    def partitions(self, source: SnapshotSource) -> Sequence[Any]:
        """Return the partitions, one per task; deterministic."""

    def read(self, source: SnapshotSource, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A `ReadPlan` together with its source."""

    source: SnapshotSource
    plan: ReadPlan

    @property
    def schema(self) -> pa.Schema:
        return self.plan.schema

    def partitions(self) -> Sequence[Any]:
        return self.plan.partitions(self.source)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return self.plan.read(self.source, partition)


def plan_from_options(raw_options: Mapping[str, str]) -> PlannedRead:
    """Plan a read from options as Spark passes them."""
    options = ReadOptions.parse(raw_options)
    repository = open_from_options(options.repository)
    return plan_read(SnapshotSource.resolve(repository, options), options)


def plan_read(source: SnapshotSource, options: ReadOptions) -> PlannedRead:
    """Plan a read; raise errors in the options here instead of in tasks."""
    if options.table is not None:
        return PlannedRead(source, plan_metadata_table(source, options.table, options))
    make_plan: Callable[[Session, ReadOptions], ReadPlan]
    make_plan = plan_rows if options.layout == "rows" else plan_chunks
    return PlannedRead(source, make_plan(source.open_session(), options))
