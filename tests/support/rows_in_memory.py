"""Rows to write that are in memory, where Spark is not what matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from icefloe.spark.engine.packing import enable_packing
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.writing.write_grid import BLOCK_COLUMN
from icefloe.spark.writing.write_options import WriteOptions
from icefloe.spark.writing.write_retries import RowSummary, write_with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from icefloe.repository import Repository
    from icefloe.spark.writing.write_job import WriteJob, Written, WrittenBlocks
    from icefloe.spark.writing.write_plan import WritePlan

LATS = (10.0, 20.0, 30.0)


def event_rows(events: Sequence[int]) -> pa.Table:
    """Make a row for each event and latitude; the value tells which."""
    cells = [(event, lat) for event in events for lat in LATS]
    return pa.table(
        {
            "event": pa.array([event for event, _ in cells], pa.int64()),
            "lat": pa.array([lat for _, lat in cells]),
            "v": pa.array([event * 100 + lat for event, lat in cells]),
        }
    )


@dataclass
class RowsInMemory:
    """A table, written as Spark does: looked at, routed to blocks, and written by two tasks.

    ``meanwhile`` is what others do: the next of it after the tasks of each try.
    """

    table: pa.Table
    meanwhile: Iterable[Callable[[], object]] = ()

    def __post_init__(self) -> None:
        self._others = iter(self.meanwhile)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def summarize(self, plan: WritePlan) -> RowSummary:
        labels = {name: pc.unique(self.table[name]) for name in plan.growing_dims}
        nulls = any(self.table[name].null_count for name in plan.variables)
        return RowSummary(labels, len(self.table), has_nulls=nulls)

    def distinct(self, names: Sequence[str]) -> pa.Table:
        return self.table.select(list(names))

    def write(self, job: WriteJob, plan: WritePlan) -> list[WrittenBlocks]:
        chosen = self.table.select(list(plan.columns))
        routed = pa.Table.from_batches(job.route(chosen.to_batches()))
        is_odd = pc.equal(pc.bit_wise_and(routed[BLOCK_COLUMN], 1), 1)
        parts = [
            job.write_routed(part.sort_by(BLOCK_COLUMN).to_batches())
            for part in (routed.filter(is_odd), routed.filter(pc.invert(is_odd)))
        ]
        for work in self._others:
            work()
            break
        return parts


def write_table(
    repository: Repository,
    table: pa.Table,
    *meanwhile: Callable[[], object],
    overwrite: bool = False,
    **given: Any,
) -> Written:
    options = WriteOptions.parse(encode_options(**given))
    rows = RowsInMemory(table, meanwhile)
    return write_with_retries(enable_packing(repository), options, rows, overwrite=overwrite)
