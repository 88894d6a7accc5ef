"""A branch as a stream: the rows or chunks that each new commit changed.

An offset names a snapshot: everything up to it was seen. Between two offsets lie commits; each is
read as it was when it was made, so that the same commits give the same rows, however they are cut
into micro-batches. What a commit changed is in its transaction log; no chunk is compared.

A commit gives the rows of the chunks that it wrote, which are more than those whose values changed
where it wrote to a part of a chunk. New labels alone, new attributes, and deletions give none.

Where snapshots expired, the oldest commit that was kept is the first one's child, and all that it
has is new: it gives every chunk that is there, as of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icefloe.errors import NodeNotFoundError, SnapshotNotFoundError
from icefloe.model.path import Path
from icefloe.spark.chunks import ChunksPlan, read_chunks
from icefloe.spark.group import open_array
from icefloe.spark.options import invalid
from icefloe.spark.partitions import filled, target_size
from icefloe.spark.read_plan import plan_read
from icefloe.spark.rows import RowsPlan, read_rows
from icefloe.spark.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from numpy.typing import NDArray

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.snapshots import SnapshotInfo
    from icefloe.spark.axes import Axis
    from icefloe.spark.chunks import ArrayChunks
    from icefloe.spark.read_plan import ReadPlan
    from icefloe.spark.write_options import StreamOptions

COMMIT_COLUMNS: Final = (
    pa.field("_snapshot_id", pa.string()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
)
OFFSET_KEY: Final = "snapshot"

_MOST_BLOCKS: Final = 1 << 28
"""One byte of the driver's memory each, to find out which of them changed."""


@dataclass(frozen=True, slots=True)
class CommitPart:
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
class _Changed:
    """What a commit changed of a table, or of one array: blocks or chunks, by their numbers."""

    info: SnapshotInfo
    array: int | None
    numbers: NDArray[np.int64]
    each_bytes: float

    def cut(self, target_bytes: float) -> Iterator[tuple[CommitPart, float]]:
        """Cut it into parts that are small enough for a task, each with its size."""
        at_once = max(1, int(target_bytes / max(self.each_bytes, 1)))
        for first in range(0, len(self.numbers), at_once):
            some = self.numbers[first : first + at_once]
            ranges = [range(int(run[0]), int(run[-1]) + 1) for run in _runs(some)]
            parts = ranges if self.array is None else [(self.array, one) for one in ranges]
            yield (
                CommitPart(self.info.id, self.info.written_at, tuple(parts)),
                len(some) * self.each_bytes,
            )


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
        gone = None
        try:
            for info in self.repository.ancestry(snapshot_id=stop):
                if info.id == start:
                    return found[::-1]
                found.append(info)
        except SnapshotNotFoundError as error:
            gone = error
        raise invalid(
            f"snapshot {start}, up to which this stream has read, is not in the history of "
            f"{stop}, up to which it is to read branch {self.options.branch!r}: the branch was "
            "reset, or one of the two expired. Nobody can tell what is new. Start the stream with "
            "a new checkpoint, which reads all that is there, or with the option startingSnapshot "
            "what came after that; or reset the branch to a snapshot that comes from this one"
        ) from gone

    def tasks(self, start: str, stop: str) -> list[tuple[CommitPart, ...]]:
        """Cut what commits changed into tasks; small commits share one."""
        newer = self.between(start, stop)
        # The first snapshot is empty: whatever the commit after it has is new. Its log would tell
        # the same, were nothing expired between the two; but nothing tells whether that is so, and
        # in version 1 nothing leads to the logs that expired.
        is_first = bool(newer) and self.repository.lookup_snapshot(start).parent_id is None
        changed = [
            one
            for place, info in enumerate(newer)
            for one in self._changed_by(info, whole=is_first and place == 0)
        ]
        total = sum(len(one.numbers) * one.each_bytes for one in changed)
        target = target_size(total, self.options.read.target_bytes)
        return filled((part for one in changed for part in one.cut(target)), target)

    def read(self, task: tuple[CommitPart, ...]) -> Iterator[pa.RecordBatch]:
        """Read a task as batches."""
        for (snapshot_id, committed_at), some in groupby(
            task, lambda one: (one.snapshot_id, one.committed_at)
        ):
            session = Source(self.repository, snapshot_id).session()
            plan = self._plan(session).plan
            parts = [part for one in some for part in one.parts]
            batches: Iterator[pa.RecordBatch]
            if isinstance(plan, RowsPlan):
                batches = (batch for part in parts for batch in read_rows(session, plan, part))
            else:
                assert isinstance(plan, ChunksPlan)  # noqa: S101 - streams have no tables
                batches = read_chunks(session, plan, parts)
            for batch in batches:
                yield self._with_commit(batch, snapshot_id, committed_at)

    def _changed_by(self, info: SnapshotInfo, *, whole: bool) -> Iterator[_Changed]:
        session = Source(self.repository, info.id).session()
        changed = (
            _all_chunks(session, self.options.read.group)
            if whole
            else _changed_chunks(self.repository, session, info)
        )
        if not changed:
            return
        try:
            plan = self._plan(session).plan
        except NodeNotFoundError:
            return  # it was not made yet, or is gone: this commit has none of its rows
        if isinstance(plan, RowsPlan):
            num_blocks = prod(plan.grid)
            each = plan.num_rows * plan.row_bytes / max(num_blocks, 1)
            yield _Changed(info, None, _changed_rows(session, plan, changed), each)
            return
        assert isinstance(plan, ChunksPlan)  # noqa: S101 - streams have no tables
        for number, wanted in enumerate(plan.arrays):
            if wanted.path in changed and 0 not in wanted.grid:
                numbers = _numbers(wanted, changed[wanted.path])
                yield _Changed(info, number, numbers, wanted.chunk_bytes)

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

    def _with_commit(
        self, batch: pa.RecordBatch, snapshot_id: str, committed_at: datetime
    ) -> pa.RecordBatch:
        if not self.options.commit_columns:
            return batch
        columns = [
            pa.repeat(pa.scalar(value, field.type), len(batch))
            for value, field in zip((snapshot_id, committed_at), COMMIT_COLUMNS, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema)


def _changed_chunks(
    repository: Repository, session: Session, info: SnapshotInfo
) -> dict[str, NDArray[np.int64]]:
    """Return the chunks that a commit wrote or deleted, by the path of their array."""
    diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
    found = {}
    for path, chunks in diff.updated_chunks.items():
        if session.transaction.get_node(Path(path)) is not None:
            matrix = np.array(list(chunks), np.int64)
            found[path] = matrix.reshape(len(matrix), -1)
    return found


def _all_chunks(session: Session, group: str) -> dict[str, NDArray[np.int64]]:
    """Return the chunks that are there, of the arrays right below a group."""
    transaction = session.transaction
    place = Path(group)
    found = {}
    for name in transaction.children(place):
        node = transaction.get_node(place.child(name))
        if node is not None and node.is_array:
            parts = [refs.coords for refs in transaction.chunk_refs(node.path)]
            if any(map(len, parts)):
                found[node.path.value] = np.concatenate(parts).astype(np.int64)
    return found


def _columns(schema: pa.Schema, options: StreamOptions) -> pa.Schema:
    return pa.schema([*schema, *COMMIT_COLUMNS]) if options.commit_columns else schema


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _changed_rows(
    session: Session, plan: RowsPlan, changed: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Find the blocks of a table that have changed chunks; changed labels are not counted.

    To append one label is to write the chunk of labels, in which all the others are as well.
    """
    grid = plan.grid
    if prod(grid) > _MOST_BLOCKS:
        raise invalid(
            f"the table of this stream has {prod(grid)} blocks, more than {_MOST_BLOCKS}, because "
            f"its chunks are small: follow a part of it with 'isel', or use layout='chunks'"
        )
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
    return np.flatnonzero(mask)


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


def _runs(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut ascending numbers where some are left out."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
