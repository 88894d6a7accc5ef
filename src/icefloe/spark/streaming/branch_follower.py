"""A branch as a stream: the rows or chunks that each new commit changed.

An offset is a snapshot: everything up to it was read. Each commit between two offsets is read at
its own snapshot, so that the same commits give the same rows, however they are grouped into
micro-batches. A commit is never split between micro-batches.

A commit yields the rows that it added, and the rows of the chunks that it wrote: more than those
whose values changed, if it wrote a part of a chunk (`row_stream`, `chunk_stream`). New labels
alone, new attributes and deletions yield none.

After an expiration the oldest remaining commit is the child of the first one. All that it has is
new: it yields every row, or every stored chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from icefloe.errors import NodeNotFoundError, SnapshotNotFoundError
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.group import has_arrays
from icefloe.spark.reading.partitions import choose_target_bytes, pack_tasks
from icefloe.spark.reading.snapshot_source import SnapshotSource
from icefloe.spark.streaming.chunk_stream import ChunkStreamPlan
from icefloe.spark.streaming.commit_changes import Commit, may_affect
from icefloe.spark.streaming.row_stream import RowStreamPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.snapshots import SnapshotInfo
    from icefloe.spark.streaming.commit_changes import Changes, CommitPart, StreamPlan
    from icefloe.spark.streaming.stream_options import StreamOptions

COMMIT_COLUMNS: Final = (
    pa.field("_snapshot_id", pa.string()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
)
OFFSET_KEY: Final = "snapshot"


@dataclass(frozen=True, slots=True, eq=False)
class BranchFollower:
    """Follows a branch; pickles, with the credentials of its repository inside."""

    repository: Repository
    options: StreamOptions
    schema: pa.Schema

    @classmethod
    def begin(cls, repository: Repository, options: StreamOptions) -> BranchFollower:
        """Take the columns from the current tip of the branch."""
        session = SnapshotSource.resolve(repository, options.read).session()
        plan = _make_plan(session, options)
        return cls(repository, options, _add_commit_columns(plan.schema, options))

    def initial(self) -> str:
        """Return the snapshot that a new stream starts after."""
        options = self.options
        infos = list(self.repository.ancestry(branch=options.branch))
        if options.starting_snapshot is not None:
            if all(info.id != options.starting_snapshot for info in infos):
                raise invalid_input(
                    f"startingSnapshot {options.starting_snapshot!r} is not in the history of "
                    f"branch {options.branch!r}, which goes from {infos[-1].id} to {infos[0].id}"
                )
            return options.starting_snapshot
        return infos[0].id if options.starting == "latest" else infos[-1].id

    def tip(self) -> str:
        """Return the newest snapshot of the branch."""
        return self.repository.lookup_branch(self.options.branch)

    def advance(self, start: str, target: str) -> str:
        """Return the end of the next micro-batch on the way from a snapshot to another.

        It has at least one commit, however large, so that the stream makes progress.
        """
        if start == target:
            return start
        newer = self.between(start, target)[: self.options.max_commits]
        max_bytes = self.options.max_bytes
        if max_bytes is None:
            return newer[-1].id
        reached = start
        total = 0.0
        for info, changes in self._find_changes(start, newer):
            total += sum(change.num_bytes for change in changes)
            if total > max_bytes and reached != start:
                break
            reached = info.id
        return reached

    def between(self, start: str, stop: str) -> list[SnapshotInfo]:
        """Return the commits after a snapshot, up to a descendant of it, oldest first."""
        found: list[SnapshotInfo] = []
        expired = None
        try:
            for info in self.repository.ancestry(snapshot_id=stop):
                if info.id == start:
                    return found[::-1]
                found.append(info)
        except SnapshotNotFoundError as error:
            expired = error
        raise invalid_input(
            f"snapshot {start}, up to which this stream has read, is not in the history of {stop}, "
            f"up to which it is to read branch {self.options.branch!r}: the branch was reset, or "
            "one of the two expired, and it is unknown what is new. Start the stream with a new "
            "checkpoint, which reads everything, or after a snapshot with the option "
            "startingSnapshot; or reset the branch to a descendant of the snapshot"
        ) from expired

    def tasks(self, start: str, stop: str) -> list[tuple[CommitPart, ...]]:
        """Split what commits changed into tasks; small commits share one."""
        newer = self.between(start, stop)
        changes = [change for _, found in self._find_changes(start, newer) for change in found]
        total = sum(change.num_bytes for change in changes)
        target = choose_target_bytes(total, self.options.read.target_bytes)
        return pack_tasks((part for change in changes for part in change.split(target)), target)

    def read(self, task: tuple[CommitPart, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        commits = groupby(task, lambda part: (part.snapshot_id, part.committed_at))
        for (snapshot_id, committed_at), parts in commits:
            session = SnapshotSource(self.repository, snapshot_id).session()
            plan = _make_plan(session, self.options)
            self._require_columns(session, plan)
            for batch in plan.read(session, list(parts)):
                yield self._with_commit(batch, snapshot_id, committed_at)

    def _find_changes(
        self, start: str, newer: Sequence[SnapshotInfo]
    ) -> Iterator[tuple[SnapshotInfo, list[Changes]]]:
        """Yield what each of some consecutive commits changed."""
        # The first snapshot is empty: everything in the commit after it is new. Its log says the
        # same unless snapshots between the two expired, which cannot be known; and in version 1
        # the logs of expired snapshots cannot be found.
        is_first = bool(newer) and self.repository.lookup_snapshot(start).parent_id is None
        before = None if is_first else start
        for info in newer:
            yield info, list(self._find_changes_of(info, before))
            before = info.id

    def _find_changes_of(self, info: SnapshotInfo, before: str | None) -> Iterator[Changes]:
        session = SnapshotSource(self.repository, info.id).session()
        group = self.options.read.group
        if not has_arrays(session, group):
            return
        diff = parent = None
        if before is not None:
            diff = self.repository.diff(from_snapshot_id=before, to_snapshot_id=info.id)
            if not may_affect(diff, group):
                return
            parent = SnapshotSource(self.repository, before).session()
        try:
            plan = _make_plan(session, self.options)
        except NodeNotFoundError:
            return  # a variable does not exist yet, or no longer
        for changes in plan.find_changes(Commit(info, parent, session, diff)):
            if len(changes.numbers):
                self._require_columns(session, plan)
                yield changes

    def _require_columns(self, session: Session, plan: StreamPlan) -> None:
        """Raise if a snapshot has other columns than the stream."""
        found = _add_commit_columns(plan.schema, self.options)
        if found != self.schema:
            raise invalid_input(
                f"in snapshot {session.snapshot_id} the columns are {_format_schema(found)}, and "
                f"this stream has {_format_schema(self.schema)}: choose those that stay with the "
                "option 'variables', or start a stream after it with startingSnapshot"
            )

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


def _make_plan(session: Session, options: StreamOptions) -> StreamPlan:
    make = RowStreamPlan.make if options.read.layout == "rows" else ChunkStreamPlan.make
    return make(session, options.read)


def _add_commit_columns(schema: pa.Schema, options: StreamOptions) -> pa.Schema:
    return pa.schema([*schema, *COMMIT_COLUMNS]) if options.commit_columns else schema


def _format_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
