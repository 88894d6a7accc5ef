"""Writing rows whose labels are known: tasks write blocks, and one process commits.

Tasks write the chunks of their blocks through forks and return change sets. A task that does not
have all rows of a block stages them (`staged_rows`) for the process that commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from icefloe.session.exactly_once import CommitResult, JobId, commit_once, find_commit
from icefloe.session.parallel_write import ForkPoint, copy_changes, finish_task, open_session_at
from icefloe.spark.option_parsing import input_error
from icefloe.spark.writing.staged_rows import fetch_rows, require_fits_in_memory, stage_rows
from icefloe.spark.writing.write_grid import BLOCK_COLUMN, Grid
from icefloe.store.open_array import OpenArrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.repository import Repository
    from icefloe.session import ForkSession, Session
    from icefloe.session.parallel_write import ChangeSet
    from icefloe.spark.writing.staged_rows import StagedRows
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan

_NO_BLOCK: Final = -2
_VERBS: Final = {"create": "wrote", "append": "appended", "region": "overwrote"}


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write.

    Parameters
    ----------
    snapshot_id
        Snapshot of the commit; None if there was nothing to write, or if an earlier attempt
        committed and its snapshot has expired.
    is_new
        Whether this attempt committed, instead of an earlier one.
    rows
        Number of rows that this attempt wrote.
    """

    snapshot_id: str | None
    is_new: bool
    rows: int = 0

    @classmethod
    def from_commit(cls, commit: CommitResult, rows: int) -> Written:
        """Return the result for a commit."""
        return cls(commit.snapshot_id, commit.is_new, rows if commit.is_new else 0)


@dataclass(frozen=True, slots=True)
class WrittenBlocks:
    """Result of a task: references to chunks and staged rows, without credentials.

    ``changes`` of snapshot ``base`` are the chunks of ``blocks``, with ``rows`` rows.
    ``staged`` are the rows of other blocks.
    """

    base: str
    changes: ChangeSet
    blocks: tuple[int, ...]
    rows: int
    staged: StagedRows | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WriteJob:
    """A write whose labels are known. The pickle contains the credentials of the repository.

    Tasks fork from ``point``, which has the nodes and labels of the write; ``prepared`` has them as
    changes of the base snapshot.
    """

    repository: Repository
    options: WriteOptions
    kind: str
    point: ForkPoint
    prepared: ChangeSet
    grid: Grid

    @classmethod
    def start(
        cls,
        repository: Repository,
        session: Session,
        options: WriteOptions,
        plan: WritePlan,
        grid: Grid,
    ) -> WriteJob:
        """Start from a session in which `prepare_write` wrote nodes and labels."""
        point = ForkPoint.of(session)
        return cls(repository, options, plan.kind, point, copy_changes(session), grid)

    def route(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the block number of each row."""
        for batch in batches:
            yield batch.append_column(BLOCK_COLUMN, pa.array(self.grid.route(batch)))

    def write_routed(self, batches: Iterable[pa.RecordBatch]) -> WrittenBlocks:
        """Write rows that are sorted by block number, with one block in memory at a time."""
        fork = self.point.fork()
        arrays = OpenArrays(fork.store)
        blocks: list[int] = []
        rows = 0
        for block, table in _group_by_block(batches):
            self.grid.write_block(block, table, arrays)
            blocks.append(block)
            rows += len(table)
        return self._make_result(fork, blocks, rows)

    def write_unrouted(self, batches: Iterable[pa.RecordBatch]) -> WrittenBlocks:
        """Write the blocks of which this task has all cells, and stage the other rows."""
        fork = self.point.fork()
        nonempty = [batch for batch in batches if len(batch)]
        if not nonempty:
            return self._make_result(fork, [], 0)
        table = pa.Table.from_batches(nonempty)
        is_complete = self._is_in_complete_block(self.grid.find_blocks(table))
        complete, partial = (table.filter(pa.array(mask)) for mask in (is_complete, ~is_complete))
        blocks = write_blocks(fork, self.grid, complete) if len(complete) else []
        staged = stage_rows(self.point.connection, partial.to_batches()) if len(partial) else None
        return self._make_result(fork, blocks, len(complete), staged)

    def commit(self, results: Sequence[WrittenBlocks], job: JobId | None) -> Written:
        """Commit the results of tasks, based on the snapshot that the write started from.

        Rebases over later commits. Commits nothing and raises `RebaseFailedError` if another commit
        changed the same chunks or nodes, or `InvalidInputError` if there are duplicate cells,
        missing cells of a variable without a missing value, or too many staged rows.
        """
        if written := find_written(self.repository, self.options.branch, job):
            return written
        for result in results:
            if result.base != str(self.point.base_id):
                raise input_error(
                    f"a task wrote to snapshot {result.base}, but this write started from "
                    f"{self.point.base_id}; nothing was committed: write again"
                )
        numbers = np.array([block for result in results for block in result.blocks], np.int64)
        blocks, counts = np.unique(numbers, return_counts=True)
        if (counts > 1).any():
            raise self.grid.duplicate_block_error(int(blocks[counts > 1][0]))
        staged = [result.staged for result in results if result.staged is not None]
        rows = sum(result.rows for result in results) + sum(part.num_rows for part in staged)
        require_fits_in_memory(staged)
        session = open_session_at(
            self.point.connection, self.point.base_id, self.options.branch, self.prepared.copy()
        )
        self.point.merge(session, (result.changes for result in results))
        written_blocks = set(blocks.tolist())
        if staged:
            written_blocks |= self._write_staged(session, staged, blocks)
        # After the checks for duplicates, with which the number of rows is too large.
        self.grid.require_complete(rows)
        clear_unwritten(session, self.grid, self.kind, written_blocks)
        return commit_write(self.repository, session, self.options, job, kind=self.kind, rows=rows)

    def _write_staged(
        self, session: Session, staged: Sequence[StagedRows], written: NDArray[np.int64]
    ) -> set[int]:
        """Write staged rows and return their blocks."""
        table = fetch_rows(session.connection, staged)
        # A task that wrote a block had all of its cells.
        duplicates = np.flatnonzero(np.isin(self.grid.find_blocks(table), written))
        if len(duplicates):
            raise self.grid.duplicate_cells_error(len(duplicates), table, int(duplicates[0]))
        return set(write_blocks(session, self.grid, table))

    def _is_in_complete_block(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each row, given by its block number, whether the rows fill its block."""
        blocks, indices, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        sizes = [
            prod(stop - start for start, stop in self.grid.get_box(int(block))) for block in blocks
        ]
        # If there are more rows than cells, `write_block` reports the duplicates.
        return (counts >= np.array(sizes))[indices]

    def _make_result(
        self, fork: ForkSession, blocks: list[int], rows: int, staged: StagedRows | None = None
    ) -> WrittenBlocks:
        base = str(self.point.base_id)
        return WrittenBlocks(base, finish_task(fork), tuple(blocks), rows, staged)


def find_written(repository: Repository, branch: str, job: JobId | None) -> Written | None:
    """Return the result of a job that has already committed, None otherwise."""
    commit = None if job is None else find_commit(repository, branch, job)
    return None if commit is None else Written.from_commit(commit, 0)


def write_blocks(session: Session, grid: Grid, table: pa.Table) -> list[int]:
    """Write rows in any order and return their blocks."""
    arrays = OpenArrays(session.store)
    numbers = grid.find_blocks(table)
    order = np.argsort(numbers, kind="stable")
    blocks, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for block, start, stop in zip(blocks.tolist(), starts.tolist(), ends, strict=True):
        grid.write_block(block, table.take(pa.array(order[start:stop])), arrays)
    return [int(block) for block in blocks]


def clear_unwritten(session: Session, grid: Grid, kind: str, written: set[int]) -> None:
    """Mark the cells of blocks without rows as missing; in new groups they already are."""
    if kind == "create":
        return
    arrays = OpenArrays(session.store)
    for block in range(grid.num_blocks):
        if block not in written:
            grid.clear_block(block, arrays)


def commit_write(
    repository: Repository,
    session: Session,
    options: WriteOptions,
    job: JobId | None,
    *,
    kind: str,
    rows: int,
) -> Written:
    """Commit a session in which all rows are written."""
    about = {
        "job": "write_rows",
        "kind": kind,
        "group": options.group,
        "rows": rows,
        "base": session.snapshot_id,
    }
    message = options.message or f"{_VERBS[kind]} {rows:,} rows in {options.group}"
    return Written.from_commit(commit_once(repository, session, message, job, about=about), rows)


def _group_by_block(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Group sorted rows by block."""
    current: int | None = None
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        numbers = batch[BLOCK_COLUMN].to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=_NO_BLOCK)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
            if current is not None and numbers[start] != current:
                yield current, pa.Table.from_batches(pending)
                pending = []
            current = int(numbers[start])
            pending.append(batch.slice(start, stop - start))
    if current is not None:
        yield current, pa.Table.from_batches(pending)
