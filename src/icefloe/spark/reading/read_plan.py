"""Any read, planned: its columns, the parts that tasks take, and what each of them yields.

Knows nothing of Spark. A plan pickles, with the credentials of its repository inside; it travels in
functions and readers, never in options or rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icefloe.inspection.repository import resolve_ref
from icefloe.spark.reading.chunks import ChunksPlan, plan_chunks, read_chunks
from icefloe.spark.reading.metadata_tables import MetadataTable, find_table
from icefloe.spark.reading.rows import RowsPlan, plan_rows, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A read as Spark needs it: columns, tasks, and what each of them yields.

    It goes to every task, so it does not hold the list of them.
    """

    source: SnapshotSource
    options: ReadOptions
    plan: RowsPlan | ChunksPlan | MetadataTable

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self.plan.schema

    def tasks(self) -> Sequence[Any]:
        """Cut the read into parts."""
        match self.plan:
            case RowsPlan():
                return self.plan.partitions(self.options.target_bytes, self.options.target_rows)
            case ChunksPlan():
                return self.plan.partitions(self.options.target_bytes)
            case MetadataTable():
                return self.plan.tasks(self.source)

    def read(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Read the part of one task."""
        match self.plan:
            case RowsPlan():
                return read_rows(self.source.session(), self.plan, task)
            case ChunksPlan():
                return read_chunks(self.source.session(), self.plan, task)
            case MetadataTable():
                return self.plan.read(self.source, self.options, task)


def plan_read(source: SnapshotSource, options: ReadOptions) -> ReadPlan:
    """Plan what a read yields; whatever is wrong with it shows here."""
    if options.table == "changes":
        options = _with_ends(source, options)
    if options.table is not None:
        return ReadPlan(source, options, find_table(source, options.table))
    plan = plan_rows if options.layout == "rows" else plan_chunks
    return ReadPlan(source, options, plan(source.session(), options))


def _with_ends(source: SnapshotSource, options: ReadOptions) -> ReadOptions:
    """Find the two snapshots that are compared, once and for all."""
    refs = source.session().connection.refs.pin()
    before, after = (
        str(resolve_ref(refs, name)) for name in (str(options.from_ref), options.to_ref or "main")
    )
    return replace(options, from_ref=before, to_ref=after)
