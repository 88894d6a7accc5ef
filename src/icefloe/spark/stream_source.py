"""A branch as a stream: the rows or chunks that each new commit changed.

An offset names a snapshot: everything up to it was seen. Between two offsets lie commits; each is
read as it was when it was made, so that the same commits give the same rows, however they are cut
into micro-batches. What a commit changed is in its transaction log; no chunk is compared.

A commit gives the rows of the chunks that it wrote, which are more than those whose values changed
where it wrote to a part of a chunk. New labels alone, new attributes, and deletions give none.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.errors import NodeNotFoundError
from icefloe.model.path import Path
from icefloe.spark.chunks import ArrayChunks, ChunksPlan, read_chunks
from icefloe.spark.group import open_array
from icefloe.spark.options import invalid
from icefloe.spark.partitions import target_size
from icefloe.spark.read_plan import plan_read
from icefloe.spark.rows import RowsPlan, read_rows
from icefloe.spark.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.snapshots import SnapshotInfo
    from icefloe.spark.axes import Axis
    from icefloe.spark.read_plan import ReadPlan
    from icefloe.spark.write_options import StreamOptions

COMMIT_COLUMNS: Final = (
    pa.field("_snapshot_id", pa.string()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
)
OFFSET_KEY: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class StreamTask:
    """Some of what a commit changed.

    Parameters
    ----------
    snapshot_id, committed_at
        The commit.
    parts
        Parts of the plan that reads its snapshot.
    """

    snapshot_id: str
    committed_at: datetime
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Follower:
    """Follows a branch; pickles, with the credentials of its repository inside."""

    repository: Repository
    options: StreamOptions
    schema: pa.Schema

    @classmethod
    def begin(cls, repository: Repository, options: StreamOptions) -> Follower:
        """Learn the columns from the branch as it is now."""
        plan = plan_read(Source.pinned(repository, options.read), options.read)
        return cls(repository, options, _columns(plan.schema, options))

    def initial(self) -> str:
        """Return the snapshot that a new stream starts after."""
        options = self.options
        infos = list(self.repository.ancestry(branch=options.branch))
        if options.starting_snapshot is not None:
            if all(info.id != options.starting_snapshot for info in infos):
                raise invalid(
                    f"startingSnapshot {options.starting_snapshot!r} is not in the history of "
                    f"branch {options.branch!r}; that goes from {infos[-1].id} to {infos[0].id}"
                )
            return options.starting_snapshot
        return infos[0].id if options.starting == "latest" else infos[-1].id

    def tip(self) -> str:
        """Return the newest snapshot of the branch."""
        return self.repository.lookup_branch(self.options.branch)

    def advance(self, start: str, target: str) -> str:
        """Return how far a micro-batch goes, on the way from a snapshot to another."""
        if start == target:
            return start
        newer = [info.id for info in self.between(start, target)]
        limit = self.options.max_commits
        return newer[-1] if limit is None or len(newer) <= limit else newer[limit - 1]

    def between(self, start: str, stop: str) -> list[SnapshotInfo]:
        """Return the commits after a snapshot, up to another one, oldest first.

        Raises
        ------
        InvalidInputError
            If the second does not come from the first.
        """
        found: list[SnapshotInfo] = []
        for info in self.repository.ancestry(snapshot_id=stop):
            if info.id == start:
                return found[::-1]
            found.append(info)
        raise invalid(
            f"snapshot {start}, up to which this stream has read, is not in the history of branch "
            f"{self.options.branch!r}, which ends at {stop}: the branch was reset, or the snapshot "
            "expired. Nobody can tell what is new. Start the stream with a new checkpoint and the "
            "option startingSnapshot, or reset the branch to a snapshot that comes from this one"
        )

    def tasks(self, start: str, stop: str) -> list[StreamTask]:
        """Cut what commits changed into tasks; small commits are not cut."""
        return [task for info in self.between(start, stop) for task in self._tasks_of(info)]

    def read(self, task: StreamTask) -> Iterator[pa.RecordBatch]:
        """Read a task as batches."""
        source = Source(self.repository, task.snapshot_id)
        session = source.session()
        plan = self._plan(session).plan
        for part in task.parts:
            batches = (
                read_rows(session, plan, part)
                if isinstance(plan, RowsPlan)
                else read_chunks(session, plan, part)  # type: ignore[arg-type]
            )
            for batch in batches:
                yield self._with_commit(batch, task)

    def _tasks_of(self, info: SnapshotInfo) -> Iterator[StreamTask]:
        session = Source(self.repository, info.id).session()
        changed = changed_chunks(self.repository, session, info.id)
        if not changed:
            return
        try:
            plan = self._plan(session)
        except NodeNotFoundError:
            return  # it was not made yet, or is gone: this commit has none of its rows
        parts: Sequence[Any]
        if isinstance(plan.plan, RowsPlan):
            parts = _changed_rows(session, plan.plan, changed, self.options.read.target_bytes)
        else:
            assert isinstance(plan.plan, ChunksPlan)  # noqa: S101 - streams have no tables
            parts = _changed_arrays(plan.plan, changed, self.options.read.target_bytes)
        for group in parts:
            yield StreamTask(info.id, info.written_at, tuple(group))

    def _plan(self, session: Session) -> ReadPlan:
        source = Source(self.repository, session.snapshot_id)
        plan = plan_read(source, self.options.read)
        found = _columns(plan.schema, self.options)
        if found != self.schema:
            raise invalid(
                f"in snapshot {session.snapshot_id} the columns are {_shown(found)}, and this "
                f"stream has {_shown(self.schema)}: choose those that stay with the option "
                "'variables', or start a stream after it with startingSnapshot"
            )
        return plan

    def _with_commit(self, batch: pa.RecordBatch, task: StreamTask) -> pa.RecordBatch:
        if not self.options.commit_columns:
            return batch
        columns = [
            pa.repeat(pa.scalar(value, field.type), len(batch))
            for value, field in zip(
                (task.snapshot_id, task.committed_at), COMMIT_COLUMNS, strict=True
            )
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema)


def changed_chunks(
    repository: Repository, session: Session, snapshot_id: str
) -> dict[str, NDArray[np.int64]]:
    """Return the chunks that a commit wrote or deleted, by the path of their array."""
    diff = repository.diff(
        from_snapshot_id=repository.lookup_snapshot(snapshot_id).parent_id or snapshot_id,
        to_snapshot_id=snapshot_id,
    )
    found = {}
    for path, chunks in diff.updated_chunks.items():
        if session.transaction.get_node(Path(path)) is not None:
            matrix = np.array(list(chunks), np.int64)
            found[path] = matrix.reshape(len(matrix), -1)
    return found


def _columns(schema: pa.Schema, options: StreamOptions) -> pa.Schema:
    return pa.schema([*schema, *COMMIT_COLUMNS]) if options.commit_columns else schema


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _changed_rows(
    session: Session,
    plan: RowsPlan,
    changed: Mapping[str, NDArray[np.int64]],
    target_bytes: int | None,
) -> list[list[range]]:
    """Find the blocks of a table that have changed chunks; changed labels are not counted.

    To append one label is to write the chunk of labels, in which all the others are as well.
    """
    grid = plan.grid
    if not prod(grid):
        return []
    names = {axis.name for axis in plan.axes}
    mask = np.zeros(grid, bool)
    for column in plan.columns:
        if column.path is None or column.path not in changed or column.name in names:
            continue
        lengths = getattr(open_array(session, column.path).metadata.chunk_grid, "chunk_shape", None)
        if lengths is None:
            mask[:] = True  # chunks of many sizes: take all, rather than miss one
            continue
        for chunk in changed[column.path].tolist():
            where: list[slice] = [slice(None)] * len(grid)
            for axis, number, length in zip(column.axes, chunk, lengths, strict=True):
                where[axis] = _blocks(plan.axes[axis], number * length, (number + 1) * length)
            mask[tuple(where)] = True
    return _grouped(np.flatnonzero(mask), plan.num_rows * plan.row_bytes / prod(grid), target_bytes)


def _blocks(axis: Axis, start: int, stop: int) -> slice:
    """Find the blocks of an axis that have selected positions of a stretch."""
    positions = np.asarray(axis.positions)
    first, last = np.searchsorted(positions, [start, stop])
    if first == last:
        return slice(0, 0)
    return slice(
        int(np.searchsorted(axis.offsets, first, "right")) - 1,
        int(np.searchsorted(axis.offsets, last, "left")),
    )


def _changed_arrays(
    plan: ChunksPlan, changed: Mapping[str, NDArray[np.int64]], target_bytes: int | None
) -> list[list[tuple[int, range]]]:
    """Find the chunks that changed, among those that are wanted."""
    found: list[list[tuple[int, range]]] = []
    for number, wanted in enumerate(plan.arrays):
        if wanted.path not in changed or not prod(wanted.grid):
            continue
        numbers = _numbers(wanted, changed[wanted.path])
        each = wanted.num_bytes / prod(wanted.grid)
        found += [
            [(number, part) for part in group] for group in _grouped(numbers, each, target_bytes)
        ]
    return found


def _numbers(wanted: ArrayChunks, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give changed chunks the numbers that they have in the plan."""
    if not wanted.chunks:
        return np.zeros(min(len(chunks), 1), np.int64)
    places = []
    is_wanted = np.ones(len(chunks), bool)
    for along, numbers in zip(wanted.chunks, chunks.T, strict=True):
        place = np.searchsorted(along, numbers).clip(max=max(len(along) - 1, 0))
        is_wanted &= along[place] == numbers
        places.append(place)
    flat = np.ravel_multi_index([place[is_wanted] for place in places], wanted.grid)
    return np.unique(flat)


def _grouped(
    numbers: NDArray[np.int64], each_bytes: float, target_bytes: int | None
) -> list[list[range]]:
    """Put numbers into ranges, and ranges into tasks of about the same size."""
    if not len(numbers):
        return []
    target = target_size(len(numbers) * each_bytes, target_bytes)
    at_once = max(1, int(target / max(each_bytes, 1)))
    return [
        [range(int(run[0]), int(run[-1]) + 1) for run in np.split(part, _breaks(part))]
        for part in np.split(numbers, range(at_once, len(numbers), at_once))
    ]


def _breaks(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.flatnonzero(np.diff(numbers) > 1) + 1
