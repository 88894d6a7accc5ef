"""A planned read: its columns, its partitions, and the rows of each partition.

Knows nothing of Spark. A planned read pickles, with the credentials of its repository inside: it
travels in functions and readers, never in options or rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.spark.reading.chunks import plan_chunks
from icefloe.spark.reading.metadata_tables.registry import plan_metadata_table
from icefloe.spark.reading.rows import plan_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource


class ReadPlan(Protocol):
    """What a read yields. Holds no credentials and no list of partitions: it goes to every task."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""
        ...

    def partitions(self, source: SnapshotSource) -> Sequence[Any]:
        """Return the partitions, one per task; deterministic."""
        ...

    def read(self, source: SnapshotSource, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A plan with the snapshot that it reads."""

    source: SnapshotSource
    plan: ReadPlan

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""
        return self.plan.schema

    def partitions(self) -> Sequence[Any]:
        """Return the partitions, one per task; deterministic."""
        return self.plan.partitions(self.source)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return self.plan.read(self.source, partition)


def plan_read(source: SnapshotSource, options: ReadOptions) -> PlannedRead:
    """Plan a read. Errors in the options are raised here, not in tasks."""
    if options.table is not None:
        return PlannedRead(source, plan_metadata_table(source, options.table, options))
    plan: ReadPlan = (
        plan_rows(source.session(), options)
        if options.layout == "rows"
        else plan_chunks(source.session(), options)
    )
    return PlannedRead(source, plan)
