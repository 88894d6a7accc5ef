"""Base classes of metadata tables: a column is defined by a function of a record."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource

T = TypeVar("T")

INT: Final = pa.int64()
INTS: Final = pa.list_(pa.int64())
TEXT: Final = pa.string()
TEXTS: Final = pa.list_(pa.string())
TIMESTAMP: Final = pa.timestamp("us", "UTC")

BATCH_ROWS: Final = 100_000

Partition = tuple[str, ...]
"""Manifest ids; empty for tables that are read in one task."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column. ``value`` maps a record to a Python value.

    In tables whose record is a batch of rows, it maps the batch to an Arrow array.
    """

    name: str
    type: pa.DataType
    value: Callable[[T], Any]


class MetadataTable(ABC, Generic[T]):
    """A table of a repository or snapshot, computed from records of type ``T``."""

    def __init__(self, *columns: Column[T]) -> None:
        self.columns = columns
        self.schema = pa.schema([(column.name, column.type) for column in columns])

    def partitions(self, source: SnapshotSource) -> list[Partition]:  # noqa: ARG002 - for subclasses
        """Return the partitions of the table, one per task."""
        return [()]

    @abstractmethod
    def read(
        self, source: SnapshotSource, options: ReadOptions, partition: Partition
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""


class RecordTable(MetadataTable[T]):
    """A table with one row per record."""

    def __init__(
        self,
        fetch_records: Callable[[SnapshotSource, ReadOptions], Iterable[T]],
        *columns: Column[T],
    ) -> None:
        super().__init__(*columns)
        self._fetch_records = fetch_records

    def read(
        self, source: SnapshotSource, options: ReadOptions, partition: Partition
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        del partition  # there is only one
        records = iter(self._fetch_records(source, options))
        while batch := list(islice(records, BATCH_ROWS)):
            yield pa.RecordBatch.from_arrays(
                [pa.array(map(column.value, batch), column.type) for column in self.columns],
                schema=self.schema,
            )


def to_json(value: Any) -> str:
    """Format a value as JSON; values without a JSON type become strings."""
    return json.dumps(value, default=str)
