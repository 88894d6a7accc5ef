"""All metadata tables by name, and the plan for reading one.

Tables are named after the metadata tables of Iceberg where an equivalent exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import ErrorKind
from icefloe.format.generation import get_generation
from icefloe.format.unsupported import unsupported_error
from icefloe.inspection.repository import resolve_ref
from icefloe.spark.reading.metadata_tables.chunk_tables import CHUNKS, FILES
from icefloe.spark.reading.metadata_tables.repository_tables import (
    HISTORY,
    OPS_LOG,
    REFS,
    SNAPSHOTS,
)
from icefloe.spark.reading.metadata_tables.snapshot_tables import CHANGES, MANIFESTS, NODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from icefloe.spark.reading.metadata_tables.table import MetadataTable, Partition
    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource

METADATA_TABLES: Final[dict[str, MetadataTable[Any]]] = {
    "snapshots": SNAPSHOTS,
    "history": HISTORY,
    "refs": REFS,
    "nodes": NODES,
    "manifests": MANIFESTS,
    "chunks": CHUNKS,
    "files": FILES,
    "changes": CHANGES,
    "ops_log": OPS_LOG,
}


@dataclass(frozen=True, slots=True)
class MetadataPlan:
    """`ReadPlan` of a metadata table.

    Holds the table's name instead of the table, whose lambdas cannot be pickled.
    """

    name: str
    options: ReadOptions

    @property
    def schema(self) -> pa.Schema:
        return METADATA_TABLES[self.name].schema

    def partitions(self, source: SnapshotSource) -> list[Partition]:
        return METADATA_TABLES[self.name].partitions(source)

    def read(self, source: SnapshotSource, partition: Partition) -> Iterator[pa.RecordBatch]:
        return METADATA_TABLES[self.name].read(source, self.options, partition)


def plan_metadata_table(source: SnapshotSource, name: str, options: ReadOptions) -> MetadataPlan:
    """Plan the read of a metadata table.

    Raises if the repository's spec version lacks this table, or if a ref to be compared by
    ``changes`` does not exist.
    """
    generation = get_generation(source.repository.generation)
    if name == "ops_log" and not generation.has_repo_info:
        raise unsupported_error(
            "the ops_log table",
            generation,
            url=source.repository.storage.url,
            alternative="read table='history', which every generation has",
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    if name == "changes":
        # Resolve refs during planning, so that all tasks and actions compare the same snapshots.
        refs = source.open_session().connection.refs.pin()
        before, after = (
            str(resolve_ref(refs, ref)) for ref in (str(options.from_ref), options.to_ref or "main")
        )
        options = replace(options, from_ref=before, to_ref=after)
    return MetadataPlan(name, options)
