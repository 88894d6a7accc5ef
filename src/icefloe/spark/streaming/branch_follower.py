"""A branch as a stream: the rows or chunks that each new commit changed.

An offset is a snapshot, up to which the stream has read. Each commit between two offsets is read at
its own snapshot, so that the rows do not depend on how commits are grouped into micro-batches. A
commit is never split between micro-batches.

A commit yields the rows that it added, and all rows of the chunks that it wrote, including rows
whose values did not change (`row_stream`, `chunk_stream`). New labels alone, new attributes and
deletions yield no rows.

After an expiration, the oldest remaining commit is the child of the initial snapshot. Everything in
it is new: it yields every row, or every stored chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from icefloe.errors import NodeNotFoundError, SnapshotNotFoundError
from icefloe.spark.option_parsing import input_error
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
    """Follows a branch. The pickle contains the credentials of the repository."""

    repository: Repository
    options: StreamOptions
    schema: pa.Schema

    @classmethod
    def begin(cls, repository: Repository, options: StreamOptions) -> BranchFollower:
        """Start with the columns of the current tip of the branch."""
        session = SnapshotSource.resolve(repository, options.read).open_session()
        plan = _make_plan(session, options)
        return cls(repository, options, _add_commit_columns(plan.schema, options))

    def find_initial_snapshot(self) -> str:
        """Return the snapshot after which a new stream starts."""
        options = self.options
        infos = list(self.repository.ancestry(branch=options.branch))
        if options.starting_snapshot is not None:
            if all(info.id != options.starting_snapshot for info in infos):
                raise input_error(
                    f"startingSnapshot {options.starting_snapshot!r} is not in the history of "
                    f"branch {options.branch!r}, which goes from {infos[-1].id} to {infos[0].id}"
                )
            return options.starting_snapshot
        return infos[0].id if options.starting == "latest" else infos[-1].id

    def fetch_tip(self) -> str:
        """Return the current snapshot of the branch."""
        return self.repository.lookup_branch(self.options.branch)

    def advance(self, start: str, target: str) -> str:
        """Return the end of the next micro-batch between two snapshots.

        The micro-batch has at least one commit of any size, so that the stream makes progress.
        """
        if start == target:
            return start
        commits = self.list_commits(start, target)[: self.options.max_commits]
        max_bytes = self.options.max_bytes
        if max_bytes is None:
            return commits[-1].id
        end = start
        total = 0.0
        for info, changes in self._find_changes(start, commits):
            total += sum(change.num_bytes for change in changes)
            if total > max_bytes and end != start:
                break
            end = info.id
        return end

    def list_commits(self, start: str, stop: str) -> list[SnapshotInfo]:
        """Return the commits after ``start`` up to its descendant ``stop``, oldest first."""
        infos: list[SnapshotInfo] = []
        expired = None
        try:
            for info in self.repository.ancestry(snapshot_id=stop):
                if info.id == start:
                    return infos[::-1]
                infos.append(info)
        except SnapshotNotFoundError as error:
            expired = error
        raise input_error(
            f"the offset of this stream, snapshot {start}, is not in the history of {stop} on "
            f"branch {self.options.branch!r}: the branch was reset, or one of the two expired, "
            "so new commits cannot be determined. Start the stream with a new checkpoint, which "
            "reads all commits, or those after a snapshot with the option startingSnapshot; or "
            "reset the branch to a descendant of the offset"
        ) from expired

    def plan_tasks(self, start: str, stop: str) -> list[tuple[CommitPart, ...]]:
        """Split the changes of commits into tasks; small commits share a task."""
        by_commit = self._find_changes(start, self.list_commits(start, stop))
        changes = [change for _, commit_changes in by_commit for change in commit_changes]
        total = sum(change.num_bytes for change in changes)
        target = choose_target_bytes(total, self.options.read.target_bytes)
        return pack_tasks((part for change in changes for part in change.split(target)), target)

    def read(self, task: tuple[CommitPart, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        parts_by_commit = groupby(task, lambda part: (part.snapshot_id, part.committed_at))
        for (snapshot_id, committed_at), parts in parts_by_commit:
            session = SnapshotSource(self.repository, snapshot_id).open_session()
            plan = _make_plan(session, self.options)
            self._require_columns(session, plan)
            for batch in plan.read(session, list(parts)):
                yield self._append_commit_columns(batch, snapshot_id, committed_at)

    def _find_changes(
        self, start: str, commits: Sequence[SnapshotInfo]
    ) -> Iterator[tuple[SnapshotInfo, list[Changes]]]:
        """Yield consecutive commits with their changes."""
        # The initial snapshot is empty: everything in the commit after it is new. Its
        # transaction log misses the changes of snapshots that expired between the two, whose own
        # logs cannot be found in spec version 1.
        is_first = bool(commits) and self.repository.lookup_snapshot(start).parent_id is None
        before = None if is_first else start
        for info in commits:
            yield info, list(self._find_commit_changes(info, before))
            before = info.id

    def _find_commit_changes(self, info: SnapshotInfo, before: str | None) -> Iterator[Changes]:
        session = SnapshotSource(self.repository, info.id).open_session()
        group = self.options.read.group
        if not has_arrays(session, group):
            return
        diff = parent = None
        if before is not None:
            diff = self.repository.diff(from_snapshot_id=before, to_snapshot_id=info.id)
            if not may_affect(diff, group):
                return
            parent = SnapshotSource(self.repository, before).open_session()
        try:
            plan = _make_plan(session, self.options)
        except NodeNotFoundError:
            return  # a variable does not exist in this commit
        for changes in plan.find_changes(Commit(info, parent, session, diff)):
            if len(changes.numbers):
                self._require_columns(session, plan)
                yield changes

    def _require_columns(self, session: Session, plan: StreamPlan) -> None:
        """Raise if the columns of a snapshot differ from those of the stream."""
        schema = _add_commit_columns(plan.schema, self.options)
        if schema != self.schema:
            raise input_error(
                f"snapshot {session.snapshot_id} has the columns {_format_schema(schema)}, but "
                f"this stream has {_format_schema(self.schema)}: choose common ones with the "
                "option 'variables', or start a new stream after the snapshot with startingSnapshot"
            )

    def _append_commit_columns(
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
    plan_type = RowStreamPlan if options.read.layout == "rows" else ChunkStreamPlan
    return plan_type.from_options(session, options.read)


def _add_commit_columns(schema: pa.Schema, options: StreamOptions) -> pa.Schema:
    return pa.schema([*schema, *COMMIT_COLUMNS]) if options.commit_columns else schema


def _format_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
